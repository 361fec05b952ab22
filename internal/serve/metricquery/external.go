// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// External is the MetricQueries as external metrics. Their names are not listed: each has
// a namespace.
type External struct{ Keeper *Keeper }

// Names returns no names.
func (External) Names() []string { return nil }

// Has reports whether a MetricQuery of the namespace serves a metric.
func (e External) Has(namespace, metric string) bool {
	_, found, _ := e.Keeper.Metric(namespace, metric)
	return found
}

// Values returns the value of a MetricQuery. It has no labels.
func (e External) Values(_ context.Context, q source.ExternalQuery) ([]source.ExternalValue, error) {
	s, found, err := e.Keeper.Metric(q.Namespace, q.Metric)
	if !found || err != nil || !q.Selector.Matches(labels.Set(nil)) {
		return nil, err
	}
	return []source.ExternalValue{{Value: s.Value, At: s.At}}, nil
}

// labelAutoscaler is the label of MetricOfAutoscalers with the name of the GPUAutoscaler.
const labelAutoscaler = target.AutoscalerLabel

// Replicas is the desired replicas of GPUAutoscalers as an external metric,
// MetricOfAutoscalers.
type Replicas struct {
	Autoscalers func(namespace string) []string
	Desired     func(namespace, autoscaler string) (Sample, error)
}

// Names returns the name of the metric.
func (Replicas) Names() []string { return []string{MetricOfAutoscalers} }

// Has reports whether it is this metric. Every namespace has it.
func (Replicas) Has(_, metric string) bool { return metric == MetricOfAutoscalers }

// Values returns the desired replicas of the namespace's GPUAutoscalers.
func (r Replicas) Values(_ context.Context, q source.ExternalQuery) (out []source.ExternalValue, err error) {
	for _, name := range r.Autoscalers(q.Namespace) {
		set := labels.Set{labelAutoscaler: name}
		if !q.Selector.Matches(set) {
			continue
		}
		if d, err := r.Desired(q.Namespace, name); err == nil {
			out = append(out, source.ExternalValue{Labels: set, Value: d.Value, At: d.At})
		}
	}
	return out, nil
}
