// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/certificates"
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
		{"delegate-custom-metrics", &e.delegateCustom, "`server` that answers requests for unknown metrics of custom.metrics.k8s.io: NAMESPACE/SERVICE[:PORT] or https://HOST[:PORT]", metricsapi.IsDelegate(&e.delegateCustom)},
		{"delegate-external-metrics", &e.delegateExternal, "the same `server` of external.metrics.k8s.io; needs --external-metrics", metricsapi.IsDelegate(&e.delegateExternal)},
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
		u, err := metricsapi.DelegateURL(x.server)
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
		Queries: p.scheduler, LimitQuery: limit, Workload: p.workloadSample, Desired: p.desiredReplicas,
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

// metricsAPIs returns the APIs that this controller registers.
func (c *config) metricsAPIs() []certificates.APIVersion {
	apis := certificates.CustomMetrics()
	if c.external.enabled {
		apis = append(apis, certificates.ExternalMetrics()...)
	}
	return apis
}

// externalMetrics returns the external metrics: the replicas of GPUAutoscalers,
// MetricQueries, and the rest of an adapter's externalRules, in this order.
func (p *program) externalMetrics() metricsapi.Externals {
	all := metricsapi.Externals{
		metricquery.Replicas{Autoscalers: p.control.AutoscalersOf, Desired: p.desiredReplicas}, metricquery.External{Keeper: p.queries},
	}
	if p.adapter != nil {
		all = append(all, p.adapter.ExternalSource())
	}
	return all
}

// desiredReplicas returns what a GPUAutoscaler decided last.
func (p *program) desiredReplicas(namespace, autoscaler string) (metricquery.Sample, error) {
	d, err := p.control.DesiredReplicas(namespace, autoscaler)
	return metricquery.Sample{Value: float64(d.Replicas), At: d.At}, err
}
