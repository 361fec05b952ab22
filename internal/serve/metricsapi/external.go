// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics/v1beta1"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
)

// External provides external metrics. It is called on every request, from several
// goroutines.
type External interface {
	// Names lists metrics that every namespace may have, for discovery. Metrics of one
	// namespace are not listed, because discovery is for all users.
	Names() []string
	// Has reports whether a namespace has a metric. It evaluates nothing.
	Has(namespace, metric string) bool
	// Values returns the values of such a metric that the selector selects. The error
	// says why it has no fresh value.
	Values(ctx context.Context, q source.ExternalQuery) ([]source.ExternalValue, error)
}

// Externals asks several, in their order: the first one that has a metric answers.
type Externals []External

// Names implements External.
func (all Externals) Names() (names []string) {
	for _, x := range all {
		names = append(names, x.Names()...)
	}
	return names
}

// Has implements External.
func (all Externals) Has(namespace, metric string) bool {
	return slices.ContainsFunc(all, func(x External) bool { return x.Has(namespace, metric) })
}

// Values implements External.
func (all Externals) Values(ctx context.Context, q source.ExternalQuery) ([]source.ExternalValue, error) {
	for _, x := range all {
		if x.Has(q.Namespace, q.Metric) {
			return x.Values(ctx, q)
		}
	}
	return nil, nil // it was deleted meanwhile
}

// externalProvider answers external.metrics.k8s.io.
type externalProvider struct {
	external External
	now      func() time.Time
	observe  func(seconds float64) // records the age of each value that is served; may be nil
	programs *weight.Counts        // as in Deps
}

var _ provider.ExternalMetricsProvider = (*externalProvider)(nil)

// externalProvider returns the provider for the library, and adds the API to discovery;
// nil if the API is not served.
func (s *Server) externalProvider(config *genericapiserver.Config) provider.ExternalMetricsProvider {
	p := s.provider
	if p.deps.External == nil {
		return nil
	}
	e := &externalProvider{external: p.deps.External, now: p.deps.Now, observe: p.observe, programs: p.deps.Programs}
	config.AggregatedDiscoveryGroupManager = newDiscovery(config.AggregatedDiscoveryGroupManager, e.names, publishExternal)
	return e
}

// GetExternalMetric returns the values that the selector selects. Without a fresh value
// the error is NotFound with the reason, so that a HorizontalPodAutoscaler keeps its
// replicas.
func (p *externalProvider) GetExternalMetric(ctx context.Context, namespace string, selector labels.Selector, info provider.ExternalMetricInfo) (*external_metrics.ExternalMetricValueList, error) {
	if namespace == "" {
		return nil, apierrors.NewBadRequest("external metrics are namespaced, and no namespace was given")
	}
	if selector == nil {
		selector = labels.Everything()
	}
	if err := weigh(p.programs, selector); err != nil {
		return nil, err
	}
	now := p.now()
	if !p.external.Has(namespace, info.Metric) {
		return nil, notFound("external metric %s is not known in namespace %s: create a MetricQuery of this name there", info.Metric, namespace)
	}
	values, err := p.external.Values(ctx, source.ExternalQuery{Namespace: namespace, Metric: info.Metric, Selector: selector, Now: now})
	if err != nil {
		return nil, notFound("external metric %s: %v", info.Metric, err)
	}
	list := &external_metrics.ExternalMetricValueList{Items: []external_metrics.ExternalMetricValue{}}
	for i := range values {
		v := &values[i]
		if math.IsNaN(v.Value) || math.IsInf(v.Value, 0) {
			continue
		}
		if p.observe != nil {
			p.observe(now.Sub(v.At).Seconds())
		}
		list.Items = append(list.Items, external_metrics.ExternalMetricValue{
			MetricName: info.Metric, MetricLabels: v.Labels, Timestamp: metav1.Time{Time: v.At}, Value: quantity(v.Value),
		})
	}
	if len(list.Items) == 0 {
		return nil, notFound("external metric %s has no value in namespace %s that the selector %q matches", info.Metric, namespace, selector)
	}
	return list, nil
}

// names returns the names for discovery, sorted.
func (p *externalProvider) names() []string {
	names := slices.Clone(p.external.Names())
	slices.Sort(names)
	return slices.Compact(names)
}

// ListAllExternalMetrics lists the metrics for discovery.
func (p *externalProvider) ListAllExternalMetrics() []provider.ExternalMetricInfo {
	var list []provider.ExternalMetricInfo
	for _, name := range p.names() {
		list = append(list, provider.ExternalMetricInfo{Metric: name})
	}
	return list
}

// publishExternal publishes external.metrics.k8s.io.
func publishExternal(m aggregated.ResourceManager, names []string) {
	version := apidiscoveryv2.APIVersionDiscovery{
		Version: v1beta1.SchemeGroupVersion.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
	}
	for _, name := range names {
		version.Resources = append(version.Resources, apidiscoveryv2.APIResourceDiscovery{
			Resource: name, Scope: apidiscoveryv2.ScopeNamespace, Verbs: metav1.Verbs{"get"},
			ResponseKind: &metav1.GroupVersionKind{Kind: "ExternalMetricValueList"},
		})
	}
	m.AddGroupVersion(external_metrics.GroupName, version)
	m.SetGroupVersionPriority(metav1.GroupVersion{Group: external_metrics.GroupName, Version: version.Version}, groupPriority, 100)
}
