// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/serve/metricsapi"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// externalConfig holds the flags of external metrics.
type externalConfig struct {
	enabled          bool
	delegateCustom   string
	delegateExternal string
	delegateCA       string
	delegateInsecure bool
}

func (e *externalConfig) rows() []option {
	return []option{
		{"external-metrics", &e.enabled, "serve external.metrics.k8s.io: MetricQueries and the desired replicas of GPUAutoscalers; KEDA serves this API where it is installed", nil},
		{"delegate-custom-metrics", &e.delegateCustom, "`server` that answers requests for unknown metrics of custom.metrics.k8s.io: NAMESPACE/SERVICE[:PORT] or https://HOST[:PORT]", isDelegate(&e.delegateCustom)},
		{"delegate-external-metrics", &e.delegateExternal, "the same `server` of external.metrics.k8s.io; needs --external-metrics", isDelegate(&e.delegateExternal)},
		{"delegate-ca-file", &e.delegateCA, "`file` with the authorities of the delegates' certificates", nil},
		{"delegate-insecure-skip-tls-verify", &e.delegateInsecure, "do not check the delegates' certificates: whoever answers at their address gets the controller's token and sets the values", nil},
	}
}

// check checks the flags together.
func (e *externalConfig) check() error {
	switch delegates := e.delegateCustom != "" || e.delegateExternal != ""; {
	case e.delegateExternal != "" && !e.enabled:
		return fmt.Errorf("--delegate-external-metrics is %q and --external-metrics is not set: set both", e.delegateExternal)
	case delegates && (e.delegateCA == "") == !e.delegateInsecure:
		return errors.New("a delegate needs either --delegate-ca-file or --delegate-insecure-skip-tls-verify: set one of them")
	}
	return nil
}

// delegateURL returns the URL of NAMESPACE/SERVICE[:PORT], or of https://HOST[:PORT].
func delegateURL(s string) (string, error) {
	if strings.HasPrefix(s, "https://") {
		return s, nil
	}
	namespace, service, ok := strings.Cut(s, "/")
	name, port, hasPort := strings.Cut(service, ":")
	if !ok || len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
		return "", errors.New("want NAMESPACE/SERVICE[:PORT] or https://HOST[:PORT], such as monitoring/prometheus-adapter")
	}
	if !hasPort {
		port = "443"
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return "", fmt.Errorf("%q is not a port", port)
	}
	return "https://" + name + "." + namespace + ".svc:" + port, nil
}

func isDelegate(p *string) func() error {
	return func() error {
		if *p == "" {
			return nil
		}
		_, err := delegateURL(*p)
		return err
	}
}

// makeDelegates makes the delegates of the flags.
func (p *program) makeDelegates() ([]*metricsapi.Delegate, error) {
	e := &p.cfg.external
	var out []*metricsapi.Delegate
	for _, x := range []struct{ flag, group, server string }{
		{"delegate-custom-metrics", "custom.metrics.k8s.io", e.delegateCustom},
		{"delegate-external-metrics", "external.metrics.k8s.io", e.delegateExternal},
	} {
		if x.server == "" {
			continue
		}
		u, err := delegateURL(x.server)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", x.flag, err)
		}
		d, err := metricsapi.NewDelegate(metricsapi.DelegateConfig{
			Group: x.group, URL: u, CAFile: e.delegateCA, Insecure: e.delegateInsecure, Credentials: p.clients.Config, Log: p.log,
		})
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", x.flag, err)
		}
		p.registry.MustRegister(d)
		out = append(out, d)
	}
	return out, nil
}

// makeMetricQueries makes the keeper of the MetricQueries.
func (p *program) makeMetricQueries(limit func(namespace, promql string) (limited string, trusted bool, err error)) *metricquery.Keeper {
	return metricquery.New(metricquery.Config{Every: p.cfg.interval}, metricquery.Deps{
		Watch: p.clients.Watch, AwaitInstalled: p.clients.AwaitInstalled, Client: p.clients.Client,
		Queries: p.scheduler, LimitQuery: limit, Workload: p.workloadSample,
		Desired: func(namespace, autoscaler string) (metricquery.Sample, error) {
			d, err := p.control.DesiredReplicas(namespace, autoscaler)
			return metricquery.Sample{Value: float64(d.Replicas), At: d.At}, err
		},
		Leading: p.leading, Log: p.log,
	})
}

// workloadSample reads the value of a MetricQuery's spec.gpu. A workload at zero
// replicas has no value.
func (p *program) workloadSample(ctx context.Context, namespace string, q *v1alpha1.MetricQueryGPU) (metricquery.Sample, error) {
	in := &usage.WorkloadQuery{Namespace: namespace, Target: q.ScaleTargetRef, Metric: q.Metric, Stat: q.Stat, Active: q.InUse == "active"}
	if q.Window != nil {
		in.Window = q.Window.Duration
	}
	v, err := p.values.WorkloadValue(ctx, in, time.Now())
	if err == nil && v.Serving == 0 {
		err = fmt.Errorf("%w: none of the %d pods of %s %s serves", usage.ErrNoValue, v.Pods, q.ScaleTargetRef.Kind, q.ScaleTargetRef.Name)
	}
	return metricquery.Sample{Value: v.Value, At: v.At}, err
}

// externalMetrics is metricsapi.External: the replicas of GPUAutoscalers, MetricQueries,
// and the rest of an adapter's externalRules, in this order.
type externalMetrics struct{ p *program }

// labelAutoscaler is the label of metricquery.MetricOfAutoscalers with the name of the
// GPUAutoscaler.
const labelAutoscaler = "gpuautoscaler"

// Names implements metricsapi.External.
func (e externalMetrics) Names() []string {
	names := []string{metricquery.MetricOfAutoscalers}
	if e.p.adapter != nil {
		names = append(names, e.p.adapter.ExternalMetrics()...)
	}
	return names
}

// Has implements metricsapi.External.
func (e externalMetrics) Has(namespace, metric string) bool {
	if metric == metricquery.MetricOfAutoscalers {
		return true
	}
	_, found, _ := e.p.queries.Metric(namespace, metric)
	return found || e.p.adapter != nil && e.p.adapter.HasExternal(metric)
}

// Values implements metricsapi.External.
func (e externalMetrics) Values(ctx context.Context, q metricsapi.ExternalQuery) ([]metricsapi.ExternalValue, error) {
	if q.Metric == metricquery.MetricOfAutoscalers {
		return e.desired(q), nil
	}
	s, found, err := e.p.queries.Metric(q.Namespace, q.Metric)
	switch {
	case !found:
		return e.ofAdapter(ctx, q)
	case err != nil || !q.Selector.Matches(labels.Set(nil)):
		return nil, err
	}
	return []metricsapi.ExternalValue{{Value: s.Value, At: s.At}}, nil
}

// desired returns the desired replicas of the namespace's GPUAutoscalers.
func (e externalMetrics) desired(q metricsapi.ExternalQuery) (out []metricsapi.ExternalValue) {
	for _, name := range e.p.control.AutoscalersOf(q.Namespace) {
		set := labels.Set{labelAutoscaler: name}
		if !q.Selector.Matches(set) {
			continue
		}
		if d, err := e.p.control.DesiredReplicas(q.Namespace, name); err == nil {
			out = append(out, metricsapi.ExternalValue{Labels: set, Value: float64(d.Replicas), At: d.At})
		}
	}
	return out
}

// ofAdapter returns the values of an external rule. The selector is in its query, whose
// results may lack the selected labels.
func (e externalMetrics) ofAdapter(ctx context.Context, q metricsapi.ExternalQuery) (out []metricsapi.ExternalValue, err error) {
	if e.p.adapter == nil {
		return nil, nil
	}
	samples, err := e.p.adapter.External(ctx, q.Metric, q.Namespace, q.Selector, q.Now)
	switch {
	case errors.Is(err, adapter.ErrUnknown), errors.Is(err, adapter.ErrRequest):
		return nil, err
	case err != nil:
		return nil, errors.New("its query failed; the log of the controller has the reason")
	}
	for i := range samples {
		set := samples[i].Labels.Map()
		delete(set, model.MetricNameLabel)
		out = append(out, metricsapi.ExternalValue{Labels: set, Value: samples[i].Value, At: samples[i].At})
	}
	return out, nil
}

// metricsAPIs returns the APIs that this controller registers.
func (c *config) metricsAPIs() []certificates.APIVersion {
	apis := certificates.CustomMetrics()
	if c.external.enabled {
		apis = append(apis, certificates.ExternalMetrics()...)
	}
	return apis
}

// Query implements kedascaler.Signals.
func (k *keda) Query(namespace, name string) (kedascaler.Sample, error) {
	s, found, err := k.p.queries.Object(namespace, name)
	switch {
	case !found:
		return kedascaler.Sample{}, fmt.Errorf("%w: MetricQuery %s/%s does not exist", kedascaler.ErrNotFound, namespace, name)
	case err != nil:
		return kedascaler.Sample{}, fmt.Errorf("%w: %w", kedascaler.ErrNoValue, err)
	}
	return kedascaler.Sample(s), nil
}

// Follow implements kedascaler.Signals.
func (k *keda) Follow(namespace, query string) (stop func()) {
	return k.p.queries.Follow(namespace, query)
}
