// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/internal/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/series"
)

// Pods finds pods and their newest values in memory. It is called on every request,
// from several goroutines, and sends no requests to the API server.
//
// A pod serves unless it is starting (not ready yet, or not warm) or terminating.
// Only a serving pod has metrics.
type Pods interface {
	// State reports whether a pod serves; found is false if there is none of that name.
	State(namespace, pod string) (serving, found bool)
	// Serving returns the names of the namespace's serving pods that the selector
	// matches, sorted.
	Serving(namespace string, selector labels.Selector) []string
	// Value returns the newest value of a pod.
	Value(namespace, pod string, q series.Query) (series.Sample, bool)
	// Values returns the names and newest values of the namespace's serving pods
	// that the selector matches and that have a value.
	Values(namespace string, selector labels.Selector, q series.Query) iter.Seq2[string, series.Sample]
}

// Deps are the collaborators of the API.
type Deps struct {
	Pods Pods
	// Names returns the metric names in use. They are for discovery, and to
	// distinguish a pod's own metric without a value from an unknown one. It must be
	// cheap, because it is called often.
	Names func() []string
	// Objects finds the objects that are not pods. nil: only pods have metrics.
	Objects Objects
	// Sources serve metrics that are not built in. They are asked in order.
	Sources []Source
	Now     func() time.Time // nil: time.Now

	External External // nil: external.metrics.k8s.io is not served
}

// Provider answers the custom metrics API from memory. Its methods are safe
// for concurrent use.
type Provider struct {
	deps   Deps
	maxAge time.Duration
	window time.Duration

	observe func(seconds float64) // records the age of each value that is served; may be nil
}

var _ provider.CustomMetricsProvider = (*Provider)(nil)

// NewProvider returns a provider that serves values up to maxAge old. rateWindow is
// the windowSeconds of a counter's rate; 0: omit windowSeconds.
func NewProvider(maxAge, rateWindow time.Duration, deps Deps) *Provider {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Provider{deps: deps, maxAge: maxAge, window: rateWindow}
}

// query is a request for one metric, resolved.
type query struct {
	p         *Provider
	namespace string
	metric    string
	now       time.Time
	field     *gpu.Field // nil for a pod's own metric
	scale     float64    // the field's value divided by scale is in the name's unit
	window    *int64     // seconds; nil for an instantaneous value
}

// GetMetricByName returns the metric of one object. If it has no value now, the error
// is NotFound with the reason.
func (p *Provider) GetMetricByName(ctx context.Context, name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	k, err := p.kindOf(info.GroupResource, name.Namespace, info.Metric)
	if err != nil {
		return nil, err
	}
	if err := p.exists(ctx, k, name, info.Metric); err != nil {
		return nil, err
	}
	if k.resource == podsResource {
		v, err := p.podValue(name, info, metricSelector)
		if !errors.Is(err, ErrUnknownMetric) {
			return v, err
		}
	}
	values, err := p.fromSources(ctx, k, SourceQuery{
		Resource: k.resource, Namespace: name.Namespace, Names: []string{name.Name}, Metric: info.Metric, Selector: metricSelector, Now: p.deps.Now(),
	})
	switch {
	case errors.Is(err, ErrUnknownMetric):
		return nil, unknownMetric(info.Metric)
	case err != nil:
		return nil, err
	case len(values) == 0:
		return nil, notFound("metric %s: %s %s has no value now", info.Metric, k.resource, nameOf(name))
	}
	return &values[0], nil
}

// exists returns an error unless there is an object of that name that may have metrics.
func (p *Provider) exists(ctx context.Context, k objectKind, name types.NamespacedName, metric string) error {
	if k.resource != podsResource {
		found, err := p.deps.Objects.Has(ctx, k.resource, name.Namespace, name.Name)
		if err == nil && !found {
			err = apierrors.NewNotFound(k.resource, name.Name)
		}
		return err
	}
	serving, found := p.deps.Pods.State(name.Namespace, name.Name)
	switch {
	case !found:
		return apierrors.NewNotFound(podsResource, name.Name)
	case !serving:
		return notFound("metric %s: pod %s is starting or terminating", metric, name)
	}
	return nil
}

// nameOf returns the name of an object, with its namespace if it has one.
func nameOf(name types.NamespacedName) string {
	if name.Namespace == "" {
		return name.Name
	}
	return name.String()
}

// podValue returns a built-in metric of a serving pod. The error is ErrUnknownMetric if
// the metric is not built in.
func (p *Provider) podValue(name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	q, err := p.query(name.Namespace, info, metricSelector)
	if err != nil {
		return nil, err
	}
	var value float64
	sample, ok := p.deps.Pods.Value(name.Namespace, name.Name, q.newest())
	if ok {
		value, ok = q.value(sample)
	}
	if !ok {
		if !q.isKnown() {
			return nil, ErrUnknownMetric
		}
		return nil, notFound("metric %s: pod %s has no value from the last %s", q.metric, name, p.maxAge)
	}
	v := q.metricValue(name.Name, sample.At, value)
	return &v, nil
}

// GetMetricBySelector returns the metric of each object that the selector matches and
// that has a fresh value; of pods, only of serving ones. The list may be empty.
func (p *Provider) GetMetricBySelector(ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	k, err := p.kindOf(info.GroupResource, namespace, info.Metric)
	if err != nil {
		return nil, err
	}
	if k.resource == podsResource {
		list, err := p.podValues(namespace, selector, info, metricSelector)
		if !errors.Is(err, ErrUnknownMetric) {
			return list, err
		}
	}
	names, err := p.objectNames(ctx, k, namespace, selector)
	if err != nil {
		return nil, err
	}
	values, err := p.fromSources(ctx, k, SourceQuery{
		Resource: k.resource, Namespace: namespace, Names: names, Metric: info.Metric, Selector: metricSelector, Now: p.deps.Now(),
	})
	if errors.Is(err, ErrUnknownMetric) {
		return nil, unknownMetric(info.Metric)
	}
	if err != nil {
		return nil, err
	}
	return &custom_metrics.MetricValueList{Items: values}, nil
}

// podValues returns a built-in metric of the serving pods of a selector. The error is
// ErrUnknownMetric if the metric is not built in.
func (p *Provider) podValues(namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	q, err := p.query(namespace, info, metricSelector)
	if err != nil {
		return nil, err
	}
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	err = q.each(selector, func(pod string, at time.Time, v float64) {
		list.Items = append(list.Items, q.metricValue(pod, at, v))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// each calls f for each serving pod of the selector that has a fresh value. If there
// is none, the error is ErrUnknownMetric for an unknown metric.
func (q *query) each(selector labels.Selector, f func(pod string, at time.Time, v float64)) error {
	found := false
	for pod, s := range q.p.deps.Pods.Values(q.namespace, selector, q.newest()) {
		if v, ok := q.value(s); ok {
			found = true
			f(pod, s.At, v)
		}
	}
	if !found && !q.isKnown() {
		return ErrUnknownMetric
	}
	return nil
}

// ListAllMetrics lists the names in use by resource. It is never empty, because clients
// treat an API version without resources as broken.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo {
	names := p.names()
	list := make([]provider.CustomMetricInfo, 0, len(names))
	for _, name := range names {
		list = append(list, provider.CustomMetricInfo{GroupResource: podsResource, Namespaced: true, Metric: name})
	}
	for _, s := range p.deps.Sources {
		list = append(list, s.Metrics()...)
	}
	slices.SortFunc(list, func(a, b provider.CustomMetricInfo) int {
		return cmp.Or(
			cmp.Compare(a.GroupResource.Resource, b.GroupResource.Resource), cmp.Compare(a.GroupResource.Group, b.GroupResource.Group),
			cmp.Compare(a.Metric, b.Metric))
	})
	return slices.CompactFunc(list, func(a, b provider.CustomMetricInfo) bool {
		return a.GroupResource == b.GroupResource && a.Metric == b.Metric
	})
}

// names returns the names in use, sorted; only the GPU utilisation's if there are
// none.
func (p *Provider) names() []string {
	names := slices.Sorted(slices.Values(p.deps.Names()))
	if names = slices.Compact(names); len(names) == 0 {
		return []string{gpu.GPUUtil.String()}
	}
	return names
}

// query resolves a request for a built-in metric of pods. It fails if the request is
// invalid.
func (p *Provider) query(namespace string, info provider.CustomMetricInfo, metricSelector labels.Selector) (*query, error) {
	q := &query{p: p, namespace: namespace, metric: info.Metric, now: p.deps.Now(), scale: 1}
	ref, ok := names.Resolve(info.Metric)
	if metricSelector != nil && !metricSelector.Empty() {
		if !ok && !slices.Contains(p.deps.Names(), info.Metric) {
			return nil, ErrUnknownMetric
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"metric %s: a pod has one value of a metric, without labels: the metric selector %q cannot be met, remove it", info.Metric, metricSelector))
	}
	if !ok {
		return q, nil
	}
	q.field, ok = gpu.Lookup(ref.Field)
	if !ok || q.field.Kind == gpu.Label || ref.Scale == 0 {
		return nil, notFound("metric %s is a label, not a number", info.Metric)
	}
	q.scale = ref.Scale
	if q.field.PodAgg == gpu.Rate && p.window > 0 {
		q.window = windowSeconds(p.window)
	}
	return q, nil
}

// isKnown reports whether the metric is built in.
func (q *query) isKnown() bool {
	return q.field != nil || slices.Contains(q.p.deps.Names(), q.metric)
}

func unknownMetric(metric string) error {
	return notFound("metric %s is not known: no profile has a GPU field of this name, and no autoscaler reads a pod metric of this name", excerptOf(metric))
}

// newest returns the query to Deps.Pods.
func (q *query) newest() series.Query {
	n := series.Query{Now: q.now, MaxAge: q.p.maxAge}
	if q.field != nil {
		n.Field = q.field.ID
	} else {
		n.Metric = q.metric
	}
	return n
}

// value returns a sample's value in the name's unit. It returns false for NaN and
// infinities.
func (q *query) value(s series.Sample) (v float64, ok bool) {
	v = s.Value / q.scale
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, false
	}
	if q.p.observe != nil {
		q.p.observe(q.now.Sub(s.At).Seconds())
	}
	return v, true
}

// metricValue returns a value in the library's type.
func (q *query) metricValue(pod string, at time.Time, v float64) custom_metrics.MetricValue {
	return custom_metrics.MetricValue{
		DescribedObject: podKind.reference(q.namespace, pod),
		Metric:          custom_metrics.MetricIdentifier{Name: q.metric},
		Timestamp:       metav1.Time{Time: at},
		WindowSeconds:   q.window,
		Value:           quantity(v),
	}
}

func notFound(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: fmt.Sprintf(format, args...),
	}}
}

// maxNameShown bounds the names of a request that an error repeats, in bytes.
const maxNameShown = 100

// excerptOf shortens a name of a request for an error.
func excerptOf(name string) string { return excerpt.Of(name, maxNameShown) }
