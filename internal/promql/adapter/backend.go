// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// MaxAnswer bounds one answer of a backend, in bytes: the series of a rule, or the values
// of all objects of a namespace.
const MaxAnswer = 64 << 20

const (
	// relist is the period of discovery at a backend, as in prometheus-adapter's manifests.
	relist = time.Minute
	// seriesAge is how far back discovery looks for series there.
	seriesAge = 2 * relist
	// relistWindows is the period of discovery in the windows.
	relistWindows = 15 * time.Second
)

// payer is whose share of the engine's slots the rules use.
var payer = fair.Operator("adapter rules")

// Backend answers the queries of the rules.
type Backend struct {
	Series   SeriesFunc
	Query    QueryFunc
	Discover time.Duration // the period of discovery
}

// Engine evaluates queries over the windows; *engine.Engine is one.
type Engine interface {
	Instant(ctx context.Context, q engine.Query, at time.Time) (parser.Value, annotations.Annotations, error)
	Series(ctx context.Context, q engine.Query, s engine.Selection) ([]labels.Labels, annotations.Annotations, error)
}

// Windows are the windows in memory as a backend.
type Windows struct {
	Engine  Engine
	Timeout time.Duration // of one query
	MaxAge  time.Duration // of a sample that a query uses
}

// Backend returns the functions that read the windows.
func (w *Windows) Backend() Backend { return Backend{w.series, w.query, relistWindows} }

// series reads the series of a rule.
func (w *Windows) series(ctx context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
	now := time.Now()
	all, _, err := w.Engine.Series(ctx, engine.Query{Payer: payer, Reserved: true},
		engine.Selection{Match: []string{selectorOf(matchers)}, From: now.Add(-relistWindows), To: now})
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

// query evaluates a query of a rule. The file is the operator's, so that its queries read
// all namespaces.
func (w *Windows) query(ctx context.Context, query string, at time.Time) ([]Sample, error) {
	v, notes, err := w.Engine.Instant(ctx, engine.Query{
		PromQL: query, Payer: payer, Reserved: true, Timeout: w.Timeout, Lookback: w.MaxAge,
	}, at)
	if err != nil {
		return nil, err
	}
	v, absent := engine.Complete(v, notes)
	if x, ok := v.(promql.Vector); ok && len(x) == 0 && absent != nil {
		return nil, absent
	}
	switch v := v.(type) {
	case promql.Scalar:
		return []Sample{{Value: v.V, At: time.UnixMilli(v.T)}}, nil
	case promql.Vector:
		out := make([]Sample, 0, len(v))
		for _, s := range v {
			if s.H == nil {
				out = append(out, Sample{Labels: s.Metric, Value: s.F, At: time.UnixMilli(s.T)})
			}
		}
		return out, nil
	}
	return nil, fmt.Errorf("the query returns a %s: it must return an instant vector", v.Type())
}

// Remote returns a PromQL backend over HTTP.
func Remote(c *client.Client) Backend { return Backend{seriesOf(c), vectorOf(c), relist} }

// seriesOf reads series from a PromQL backend.
func seriesOf(c *client.Client) SeriesFunc {
	return func(ctx context.Context, matchers []*labels.Matcher, yield func(labels.Labels) bool) error {
		now := time.Now()
		all, err := c.Series(ctx, selectorOf(matchers), now.Add(-seriesAge), now)
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
func vectorOf(c *client.Client) QueryFunc {
	return func(ctx context.Context, promql string, at time.Time) ([]Sample, error) {
		v, err := c.Vector(ctx, promql, at)
		if err != nil {
			return nil, err
		}
		out := make([]Sample, len(v))
		for i, s := range v {
			out[i] = Sample{Labels: labelsOf(s.Metric), Value: float64(s.Value), At: s.Timestamp.Time()}
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

func selectorOf(matchers []*labels.Matcher) string {
	texts := make([]string, len(matchers))
	for i, m := range matchers {
		texts[i] = m.String()
	}
	return "{" + strings.Join(texts, ",") + "}"
}
