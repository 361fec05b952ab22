// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"fmt"
	"iter"
	"math"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

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
	Now   func() time.Time // nil: time.Now

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

var podsResource = schema.GroupResource{Resource: "pods"}

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

// GetMetricByName returns the metric of one pod. If it has no value now, the error is
// NotFound with the reason.
func (p *Provider) GetMetricByName(_ context.Context, name types.NamespacedName, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	q, err := p.query(name.Namespace, info, metricSelector)
	if err != nil {
		return nil, err
	}
	serving, found := p.deps.Pods.State(name.Namespace, name.Name)
	if !found {
		return nil, apierrors.NewNotFound(podsResource, name.Name)
	}
	if !serving {
		return nil, notFound("metric %s: pod %s is starting or terminating", q.metric, name)
	}
	var value float64
	sample, ok := p.deps.Pods.Value(name.Namespace, name.Name, q.newest())
	if ok {
		value, ok = q.value(sample)
	}
	if !ok {
		if err := q.known(); err != nil {
			return nil, err
		}
		return nil, notFound("metric %s: pod %s has no value from the last %s", q.metric, name, p.maxAge)
	}
	v := q.metricValue(name.Name, sample.At, value)
	return &v, nil
}

// GetMetricBySelector returns the metric of each serving pod that the selector
// matches and that has a fresh value. The list may be empty.
func (p *Provider) GetMetricBySelector(_ context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
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
// is none, it fails for an unknown metric.
func (q *query) each(selector labels.Selector, f func(pod string, at time.Time, v float64)) error {
	found := false
	for pod, s := range q.p.deps.Pods.Values(q.namespace, selector, q.newest()) {
		if v, ok := q.value(s); ok {
			found = true
			f(pod, s.At, v)
		}
	}
	if !found {
		return q.known()
	}
	return nil
}

// ListAllMetrics lists the names in use. It is never empty, because clients treat an
// API version without resources as broken.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo {
	names := p.names()
	list := make([]provider.CustomMetricInfo, len(names))
	for i, name := range names {
		list[i] = provider.CustomMetricInfo{GroupResource: podsResource, Namespaced: true, Metric: name}
	}
	return list
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

// query resolves a request. It fails if the request is invalid.
func (p *Provider) query(namespace string, info provider.CustomMetricInfo, metricSelector labels.Selector) (*query, error) {
	if info.GroupResource != podsResource {
		return nil, notFound("metric %s: %s have no metrics here, only pods do", info.Metric, info.GroupResource)
	}
	if namespace == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("metric %s: pods are namespaced, and no namespace was given", info.Metric))
	}
	if metricSelector != nil && !metricSelector.Empty() {
		return nil, apierrors.NewBadRequest(fmt.Sprintf(
			"metric %s: a pod has one value of a metric, without labels: the metric selector %q cannot be met, remove it", info.Metric, metricSelector))
	}
	q := &query{p: p, namespace: namespace, metric: info.Metric, now: p.deps.Now(), scale: 1}
	ref, ok := names.Resolve(info.Metric)
	if !ok {
		return q, nil
	}
	q.field, ok = gpu.Lookup(ref.Field)
	if !ok || q.field.Kind == gpu.Label || ref.Scale == 0 {
		return nil, notFound("metric %s is a label, not a number", info.Metric)
	}
	q.scale = ref.Scale
	if q.field.PodAgg == gpu.Rate && p.window > 0 {
		seconds := int64(math.Ceil(p.window.Seconds()))
		q.window = &seconds
	}
	return q, nil
}

// known returns an error if the metric is unknown.
func (q *query) known() error {
	if q.field != nil || slices.Contains(q.p.deps.Names(), q.metric) {
		return nil
	}
	return notFound("metric %s is not known: no profile has a GPU field of this name, and no autoscaler reads a pod metric of this name", q.metric)
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
		DescribedObject: custom_metrics.ObjectReference{
			Kind: "Pod", APIVersion: corev1.SchemeGroupVersion.String(), Namespace: q.namespace, Name: pod,
		},
		Metric:        custom_metrics.MetricIdentifier{Name: q.metric},
		Timestamp:     metav1.Time{Time: at},
		WindowSeconds: q.window,
		Value:         quantity(v),
	}
}

func notFound(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Message: fmt.Sprintf(format, args...),
	}}
}
