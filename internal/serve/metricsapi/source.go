// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/source"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/metrics/pkg/apis/custom_metrics"
)

// Source serves custom metrics beside the built-in ones: results of recording rules,
// an adapter's rules. Its methods are called from several goroutines.
type Source interface {
	// Metrics lists what the source serves now, for discovery. It is cheap: while nothing
	// changes, it is the same list.
	Metrics() []source.Metric
	// Values returns the values of a metric for some of the objects. The error is
	// ErrUnknownMetric if the source does not serve the metric; the next source is
	// asked then. Other errors should be API status errors, which the client sees.
	Values(ctx context.Context, q source.Query) ([]source.Value, error)
}

// sameList reports whether two lists are the same one.
func sameList[M any](a, b []M) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// servedBySource reports whether a source lists a metric of the resource.
func (p *Provider) servedBySource(r schema.GroupResource) bool {
	for _, s := range p.deps.Sources {
		if slices.ContainsFunc(s.Metrics(), func(m source.Metric) bool { return m.GroupResource == r }) {
			return true
		}
	}
	return false
}

// fromSources asks the sources in order. The error is ErrUnknownMetric if none serves
// the metric.
func (p *Provider) fromSources(ctx context.Context, k objectKind, q source.Query) ([]custom_metrics.MetricValue, error) {
	if q.Selector == nil {
		q.Selector = labels.Everything()
	}
	for _, s := range p.deps.Sources {
		values, err := s.Values(ctx, q)
		if errors.Is(err, source.ErrUnknownMetric) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return p.sourceValues(k, &q, values), nil
	}
	return nil, source.ErrUnknownMetric
}

// sourceValues converts the values of a source. It drops those of objects that were
// not in the query, so that a source cannot answer for other objects.
func (p *Provider) sourceValues(k objectKind, q *source.Query, values []source.Value) []custom_metrics.MetricValue {
	asked := make(map[string]bool, len(q.Names))
	for _, name := range q.Names {
		asked[name] = true
	}
	out := make([]custom_metrics.MetricValue, 0, len(values))
	for i := range values {
		v := &values[i]
		if !asked[v.Name] || math.IsNaN(v.Value) || math.IsInf(v.Value, 0) {
			continue
		}
		delete(asked, v.Name) // one value per object
		if p.observe != nil {
			p.observe(q.Now.Sub(v.At).Seconds())
		}
		out = append(out, custom_metrics.MetricValue{
			DescribedObject: k.reference(q.Namespace, v.Name),
			Metric:          custom_metrics.MetricIdentifier{Name: q.Metric, Selector: selectorValue(q.Selector)},
			Timestamp:       metav1.Time{Time: v.At},
			WindowSeconds:   windowSeconds(v.Window),
			Value:           quantity(v.Value),
		})
	}
	return out
}

// windowSeconds returns a window in whole seconds, rounded up; nil for none.
func windowSeconds(window time.Duration) *int64 {
	if window <= 0 {
		return nil
	}
	seconds := int64(math.Ceil(window.Seconds()))
	return &seconds
}

// selectorValue returns a metric selector as a value shows it; nil if it is empty or
// has no form as a label selector.
func selectorValue(s labels.Selector) *metav1.LabelSelector {
	if s == nil || s.Empty() {
		return nil
	}
	parsed, err := metav1.ParseToLabelSelector(s.String())
	if err != nil {
		return nil
	}
	return parsed
}
