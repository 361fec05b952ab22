// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/internal/base/filewatch"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// The settings of an adapter's rules.
const (
	// maxAdapterAnswer bounds one answer: the series of a rule, or the values of all
	// objects of a namespace. In bytes.
	maxAdapterAnswer = 64 << 20
	// adapterRelist is the period of discovery, as in prometheus-adapter's manifests.
	adapterRelist = time.Minute
	// adapterSeriesAge is how far back discovery looks for series.
	adapterSeriesAge = 2 * adapterRelist
	// adapterRelistWindows is the period of discovery in the windows.
	adapterRelistWindows = 15 * time.Second
)

// makeAdapter makes the server of prometheus-adapter's rules; nil without
// --adapter-config.
func (p *program) makeAdapter() error {
	c := p.cfg
	if c.adapterConfig == "" || !c.has(roleAPI) {
		return nil
	}
	deps, relist, err := p.adapterBackend()
	if err != nil {
		return err
	}
	deps.Log = p.log.With("file", c.adapterConfig)
	p.adapter = adapter.New(adapter.ServerConfig{Refresh: c.interval, Discover: relist, Resolve: p.customResource}, deps)
	p.loadAdapter()
	p.sources = append(p.sources, &adapterSource{server: p.adapter})
	p.registry.MustRegister(adapterMeters{p.adapter})
	return nil
}

// customResource finds a custom resource of an adapter's overrides.
func (p *program) customResource(ctx context.Context, group, resource string) (adapter.Kind, bool, error) {
	r, found, err := p.clients.Resource(ctx, group, resource)
	return adapter.Kind{
		GroupResource: schema.GroupResource{Group: r.Group, Resource: r.Name}, Singular: r.SingularName, Namespaced: r.Namespaced,
	}, found, err
}

// adapterBackend returns the functions that read series and values, and the period of
// discovery: those of --prometheus-url, else of the windows.
func (p *program) adapterBackend() (adapter.Deps, time.Duration, error) {
	c := p.cfg
	if c.prometheus == "" {
		if p.promql == nil {
			return adapter.Deps{}, 0, errors.New("--adapter-config needs the role query in --roles, or --prometheus-url: the rules' queries run there")
		}
		return adapter.Deps{Series: p.promql.adapterSeries, Query: p.promql.adapterQuery}, adapterRelistWindows, nil
	}
	client, err := client.New(client.Config{
		URL: c.prometheus, HTTPConfig: c.prometheusHTTP, Timeout: c.prometheusTimeout, MaxAge: c.prometheusMaxAge,
		MaxAnswer: maxAdapterAnswer, UserAgent: "gpupilot-controller/" + version,
	})
	if err != nil {
		return adapter.Deps{}, 0, fmt.Errorf("--prometheus-url: %w", err)
	}
	return adapter.Deps{Series: seriesOf(client), Query: vectorOf(client)}, adapterRelist, nil
}

// adapterPayer is whose share of the engine's slots the rules use.
const adapterPayer = "adapter rules"

// adapterSeries reads the series of a rule from the windows.
func (q *promQL) adapterSeries(ctx context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
	now := time.Now()
	all, _, err := q.engine.Series(ctx, engine.Query{Payer: adapterPayer, Reserved: true},
		engine.Selection{Match: []string{selectorOf(matchers)}, From: now.Add(-adapterRelistWindows), To: now})
	if err != nil {
		return err
	}
	for _, l := range all {
		if !yield(l) {
			return nil
		}
	}
	return nil
}

// adapterQuery evaluates a query of a rule over the windows. The file is the operator's, so
// that its queries read all namespaces.
func (q *promQL) adapterQuery(ctx context.Context, query string, at time.Time) ([]adapter.Sample, error) {
	v, _, err := q.engine.Instant(ctx, engine.Query{
		PromQL: query, Payer: adapterPayer, Reserved: true, Timeout: q.p.cfg.prometheusTimeout, Lookback: q.p.cfg.prometheusMaxAge,
	}, at)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case promql.Scalar:
		return []adapter.Sample{{Value: v.V, At: time.UnixMilli(v.T)}}, nil
	case promql.Vector:
		out := make([]adapter.Sample, 0, len(v))
		for _, s := range v {
			if s.H == nil {
				out = append(out, adapter.Sample{Labels: s.Metric, Value: s.F, At: time.UnixMilli(s.T)})
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("the query returns a %s: it must return an instant vector", v.Type())
}

func selectorOf(matchers []*labels.Matcher) string {
	texts := make([]string, len(matchers))
	for i, m := range matchers {
		texts[i] = m.String()
	}
	return "{" + strings.Join(texts, ",") + "}"
}

// loadAdapter reads the file. What is wrong with it is logged, and stops nothing.
func (p *program) loadAdapter() {
	log := p.log.With("file", p.cfg.adapterConfig)
	b, err := os.ReadFile(p.cfg.adapterConfig)
	if err == nil {
		err = p.adapter.Load(b)
	}
	if err != nil {
		log.Error("the adapter configuration has mistakes: the last good one is used; of the first one, the rules without mistakes", "err", err)
		return
	}
	log.Info("adapter configuration loaded")
}

// runAdapter keeps the rules and their metrics up to date.
func (p *program) runAdapter(ctx context.Context) {
	if err := filewatch.Watch(ctx, p.cfg.adapterConfig, p.loadAdapter); err != nil && ctx.Err() == nil {
		p.log.Error("changes of the adapter configuration are not noticed", "err", err)
	}
	p.adapter.Run(ctx)
}

// seriesOf reads series from a PromQL backend.
func seriesOf(c *client.Client) adapter.SeriesFunc {
	return func(ctx context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
		now := time.Now()
		all, err := c.Series(ctx, selectorOf(matchers), now.Add(-adapterSeriesAge), now)
		if err != nil {
			return err
		}
		for _, set := range all {
			if !yield(labelsOf(model.Metric(set))) {
				return nil
			}
		}
		return nil
	}
}

// vectorOf evaluates queries with a PromQL backend.
func vectorOf(c *client.Client) adapter.QueryFunc {
	return func(ctx context.Context, promql string, at time.Time) ([]adapter.Sample, error) {
		v, err := c.Vector(ctx, promql, at)
		if err != nil {
			return nil, err
		}
		out := make([]adapter.Sample, len(v))
		for i, s := range v {
			out[i] = adapter.Sample{Labels: labelsOf(s.Metric), Value: float64(s.Value), At: s.Timestamp.Time()}
		}
		return out, nil
	}
}

func labelsOf(m model.Metric) labels.Labels {
	b := labels.NewScratchBuilder(len(m))
	for name, value := range m {
		b.Add(string(name), string(value))
	}
	b.Sort()
	return b.Labels()
}

// adapterSource is metricsapi.Source of an adapter's rules.
type adapterSource struct {
	server *adapter.Server

	mu    sync.Mutex
	of    []adapter.Listed // that infos were made of
	infos []provider.CustomMetricInfo
}

// Metrics implements metricsapi.Source.
func (s *adapterSource) Metrics() []provider.CustomMetricInfo {
	listed := s.server.Metrics()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(listed) == len(s.of) && (len(listed) == 0 || &listed[0] == &s.of[0]) {
		return s.infos
	}
	s.of, s.infos = listed, make([]provider.CustomMetricInfo, len(listed))
	for i, m := range listed {
		s.infos[i] = provider.CustomMetricInfo{GroupResource: m.Resource, Namespaced: m.Namespaced, Metric: m.Name}
	}
	return s.infos
}

// Values implements metricsapi.Source.
func (s *adapterSource) Values(ctx context.Context, q source.Query) ([]source.Value, error) {
	values, err := s.server.Values(ctx, q.Metric, &adapter.Objects{Resource: q.Resource, Namespace: q.Namespace, Names: q.Names, Selector: q.Selector}, q.Now)
	if err != nil {
		return nil, adapterError(err)
	}
	out := make([]source.Value, len(values))
	for i, v := range values {
		out[i] = source.Value{Name: v.Name, Value: v.Value, At: v.At}
	}
	return out, nil
}

// adapterError returns the API error of a request. What the backend says is only logged.
func adapterError(err error) error {
	switch {
	case errors.Is(err, adapter.ErrUnknown):
		return source.ErrUnknownMetric
	case errors.Is(err, adapter.ErrRequest):
		return apierrors.NewBadRequest(err.Error())
	}
	return apierrors.NewServiceUnavailable("the query of the metric failed; the log of the controller has the reason")
}

// adapterMeters collects the metrics of the adapter's rules.
type adapterMeters struct{ server *adapter.Server }

// Describe implements prometheus.Collector.
func (m adapterMeters) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m adapterMeters) Collect(ch chan<- prometheus.Metric) {
	yes := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	to := sink(ch)
	to.gauge("gpupilot_adapter_config_valid", "1 if the last adapter configuration that was read had no mistakes.", yes(!m.server.Broken()))
	to.gauge("gpupilot_adapter_discovery_valid", "1 if the series of all rules of the adapter configuration could be read.", yes(!m.server.Unreadable()))
	to.gauge("gpupilot_adapter_metrics", "Metrics of objects that the adapter configuration makes.", float64(len(m.server.Metrics())))
	to.counter("gpupilot_adapter_queries_total", "Queries that were run for the metrics of the adapter configuration.", float64(m.server.Queries()))
}
