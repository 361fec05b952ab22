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
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
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
	Value(namespace, pod string, q stat.Query) (series.Sample, bool)
	// Values returns the names and newest values of the namespace's serving pods
	// that the selector matches and that have a value.
	Values(namespace string, selector labels.Selector, q stat.Query) iter.Seq2[string, series.Sample]
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
	// Statistics computes the metrics of objects and of windows. nil: there are only the
	// newest values of pods.
	Statistics Statistics
	// Sources serve metrics that are not built in. They are asked in order.
	Sources []Source
	Now     func() time.Time // nil: time.Now

	External External // nil: external.metrics.k8s.io is not served

	Programs *weight.Counts // counts the selectors that are refused for their weight; may be nil
}

// Provider answers the custom metrics API from memory. Its methods are safe
// for concurrent use.
type Provider struct {
	deps   Deps
	maxAge time.Duration
	window time.Duration
	span   time.Duration // the longest window of a request

	observe func(seconds float64) // records the age of each value that is served; may be nil

	listing    sync.Mutex // guards the rest
	listed     []provider.CustomMetricInfo
	listedFrom listedFrom
}

var _ provider.CustomMetricsProvider = (*Provider)(nil)

// NewProvider returns a provider that serves values up to maxAge old. rateWindow is
// the windowSeconds of a counter's rate; 0: omit windowSeconds.
func NewProvider(maxAge, rateWindow time.Duration, deps Deps) *Provider {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	return &Provider{deps: deps, maxAge: maxAge, window: rateWindow, span: defaultSpan}
}

// weigh returns BadRequest for the first selector that takes long to match.
func weigh(programs *weight.Counts, selectors ...labels.Selector) error {
	for _, s := range selectors {
		if s == nil {
			continue
		}
		if err := policy.WeighParsed(s); err != nil {
			return apierrors.NewBadRequest(programs.Note(err).Error())
		}
	}
	return nil
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
	if err := weigh(p.deps.Programs, metricSelector); err != nil {
		return nil, err
	}
	k, err := p.kindOf(info.GroupResource, name.Namespace, info.Metric)
	if err != nil {
		return nil, err
	}
	if err := p.exists(ctx, k, name, info.Metric); err != nil {
		return nil, err
	}
	v, err := p.builtinValue(ctx, k, name, info.Metric, metricSelector)
	if !errors.Is(err, source.ErrUnknownMetric) {
		return v, err
	}
	values, err := p.fromSources(ctx, k, source.Query{
		Resource: k.resource, Namespace: name.Namespace, Names: []string{name.Name}, Metric: info.Metric, Selector: metricSelector, Now: p.deps.Now(),
	})
	switch {
	case errors.Is(err, source.ErrUnknownMetric):
		return nil, p.unknownMetric(info.Metric)
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

// builtinValue returns a built-in metric of one object. The error is ErrUnknownMetric
// if the metric is not built in.
func (p *Provider) builtinValue(ctx context.Context, k objectKind, name types.NamespacedName, metric string, metricSelector labels.Selector) (*custom_metrics.MetricValue, error) {
	s, err := p.parse(metric, metricSelector)
	switch {
	case k.resource == podsResource && (err == nil && s.isPlain() || errors.Is(err, source.ErrUnknownMetric) && isEverything(metricSelector)):
		return p.podValue(name, p.query(name.Namespace, &s))
	case err != nil:
		return nil, err
	case p.deps.Statistics == nil || k.resource != podsResource && !isBuiltin(k.resource):
		return nil, source.ErrUnknownMetric
	}
	v, reason, err := p.statistic(ctx, k, name, &s)
	if err != nil {
		return nil, err
	}
	if reason != "" {
		return nil, notFound("metric %s of %s %s: %s", s.name, k.resource, nameOf(name), reason)
	}
	v.Metric.Selector = selectorValue(metricSelector)
	return v, nil
}

// podValue returns the newest value of a serving pod. The error is ErrUnknownMetric if
// the metric is not built in.
func (p *Provider) podValue(name types.NamespacedName, q *query) (*custom_metrics.MetricValue, error) {
	var value float64
	sample, ok := p.deps.Pods.Value(name.Namespace, name.Name, q.newest())
	if ok {
		value, ok = q.value(sample)
	}
	if !ok {
		if !q.isKnown() {
			return nil, source.ErrUnknownMetric
		}
		return nil, notFound("metric %s: pod %s has no value from the last %s", q.metric, name, p.maxAge)
	}
	v := q.metricValue(name.Name, sample.At, value)
	return &v, nil
}

// GetMetricBySelector returns the metric of each object that the selector matches and
// that has a fresh value; of pods, only of serving ones. The list may be empty.
func (p *Provider) GetMetricBySelector(ctx context.Context, namespace string, selector labels.Selector, info provider.CustomMetricInfo, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	if err := weigh(p.deps.Programs, selector, metricSelector); err != nil {
		return nil, err
	}
	k, err := p.kindOf(info.GroupResource, namespace, info.Metric)
	if err != nil {
		return nil, err
	}
	list, err := p.builtinValues(ctx, k, namespace, selector, info.Metric, metricSelector)
	if !errors.Is(err, source.ErrUnknownMetric) {
		return list, err
	}
	names, err := p.objectNames(ctx, k, namespace, selector)
	if err != nil {
		return nil, err
	}
	values, err := p.fromSources(ctx, k, source.Query{
		Resource: k.resource, Namespace: namespace, Names: names, Metric: info.Metric, Selector: metricSelector, Now: p.deps.Now(),
	})
	if errors.Is(err, source.ErrUnknownMetric) {
		return nil, p.unknownMetric(info.Metric)
	}
	if err != nil {
		return nil, err
	}
	return &custom_metrics.MetricValueList{Items: values}, nil
}

// builtinValues returns a built-in metric of the objects that a selector matches. The
// error is ErrUnknownMetric if the metric is not built in.
func (p *Provider) builtinValues(ctx context.Context, k objectKind, namespace string, selector labels.Selector, metric string, metricSelector labels.Selector) (*custom_metrics.MetricValueList, error) {
	s, err := p.parse(metric, metricSelector)
	switch {
	case k.resource == podsResource && (err == nil && s.isPlain() || errors.Is(err, source.ErrUnknownMetric) && isEverything(metricSelector)):
		return p.podValues(selector, p.query(namespace, &s))
	case err != nil:
		return nil, err
	case p.deps.Statistics == nil || k.resource != podsResource && !isBuiltin(k.resource):
		return nil, source.ErrUnknownMetric
	}
	names, err := p.objectNames(ctx, k, namespace, selector)
	if err != nil {
		return nil, err
	}
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return nil, apierrors.NewTimeoutError(fmt.Sprintf("metric %s: %v", s.name, err), 1)
		}
		v, reason, err := p.statistic(ctx, k, types.NamespacedName{Namespace: namespace, Name: name}, &s)
		if err != nil {
			return nil, err
		}
		if reason == "" {
			v.Metric.Selector = selectorValue(metricSelector)
			list.Items = append(list.Items, *v)
		}
	}
	return list, nil
}

// podValues returns the newest values of the serving pods of a selector. The error is
// ErrUnknownMetric if the metric is not built in.
func (p *Provider) podValues(selector labels.Selector, q *query) (*custom_metrics.MetricValueList, error) {
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	err := q.each(selector, func(pod string, at time.Time, v float64) {
		list.Items = append(list.Items, q.metricValue(pod, at, v))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// isEverything reports whether a selector has no requirement.
func isEverything(s labels.Selector) bool { return s == nil || s.Empty() }

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
		return source.ErrUnknownMetric
	}
	return nil
}

// ListAllMetrics lists the names in use by resource. It is never empty, because clients
// treat an API version without resources as broken. The list is made when a name, a
// source's list or a kind has changed; it is shared.
func (p *Provider) ListAllMetrics() []provider.CustomMetricInfo {
	from := listedFrom{names: p.names(), kinds: p.builtinKinds()}
	for _, s := range p.deps.Sources {
		from.sources = append(from.sources, s.Metrics())
	}
	p.listing.Lock()
	defer p.listing.Unlock()
	if p.listed == nil || !from.equals(&p.listedFrom) {
		p.listed, p.listedFrom = from.list(), from
	}
	return p.listed
}

// listedFrom is what a list of metrics is made from.
type listedFrom struct {
	names   []string     // sorted
	kinds   []objectKind // built in, beside pods
	sources [][]source.Metric
}

func (f *listedFrom) equals(o *listedFrom) bool {
	return slices.Equal(f.names, o.names) && slices.Equal(f.kinds, o.kinds) && slices.EqualFunc(f.sources, o.sources, sameList)
}

// list returns the metrics, sorted by resource and name.
func (f *listedFrom) list() []provider.CustomMetricInfo {
	list := make([]provider.CustomMetricInfo, 0, len(f.names)*(1+len(f.kinds)))
	for _, k := range append([]objectKind{podKind}, f.kinds...) {
		for _, name := range f.names {
			list = append(list, provider.CustomMetricInfo{GroupResource: k.resource, Namespaced: k.namespaced, Metric: name})
		}
	}
	for _, s := range f.sources {
		for _, m := range s {
			list = append(list, provider.CustomMetricInfo(m))
		}
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

// query returns the query for the newest values of pods.
func (p *Provider) query(namespace string, s *spec) *query {
	q := &query{p: p, namespace: namespace, metric: s.name, now: p.deps.Now(), field: s.field, scale: cmp.Or(s.scale, 1)}
	if q.field != nil && q.field.PodAgg == gpu.Rate && p.window > 0 {
		q.window = windowSeconds(p.window)
	}
	return q
}

// isKnown reports whether the metric is built in.
func (q *query) isKnown() bool {
	return q.field != nil || slices.Contains(q.p.deps.Names(), q.metric)
}

// newest returns the query to Deps.Pods.
func (q *query) newest() stat.Query {
	n := stat.Query{Now: q.now, MaxAge: q.p.maxAge}
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
