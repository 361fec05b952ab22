// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"net/http"
	"slices"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta1"
	"k8s.io/metrics/pkg/apis/custom_metrics/v1beta2"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"
)

// versions are the API versions with their priorities: clients that support both
// should prefer v1beta2.
var versions = [...]struct {
	version  string
	priority int
}{
	{v1beta2.SchemeGroupVersion.Version, 200},
	{v1beta1.SchemeGroupVersion.Version, 100},
}

// groupPriority orders the API groups that have a resource in common. No other group
// has ours, so the number has no effect.
const groupPriority = 100

// discovery is the aggregated discovery document at /apis, which Kubernetes requests
// since 1.27. The library adds its resources only to the documents of each version.
// Without discovery, the API server would find no resource. M describes a metric.
type discovery[M comparable] struct {
	aggregated.ResourceManager
	list    func() []M // sorted
	publish func(aggregated.ResourceManager, []M)

	mu   sync.Mutex
	last []M
}

func newDiscovery[M comparable](m aggregated.ResourceManager, list func() []M, publish func(aggregated.ResourceManager, []M)) *discovery[M] {
	d := &discovery[M]{ResourceManager: m, list: list, publish: publish}
	d.refresh()
	return d
}

// ServeHTTP serves the document with the metric names that are in use now.
func (d *discovery[M]) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.refresh()
	d.ResourceManager.ServeHTTP(w, r)
}

// refresh updates the document if the names have changed.
func (d *discovery[M]) refresh() {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := d.list()
	if sameList(list, d.last) || slices.Equal(list, d.last) {
		return
	}
	d.last = list
	d.publish(d.ResourceManager, list)
}

// publishCustom publishes the versions of custom.metrics.k8s.io.
func publishCustom(m aggregated.ResourceManager, metrics []provider.CustomMetricInfo) {
	for _, v := range versions {
		m.AddGroupVersion(custom_metrics.GroupName, apidiscoveryv2.APIVersionDiscovery{
			Version: v.version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: resourcesOf(metrics),
		})
		m.SetGroupVersionPriority(metav1.GroupVersion{Group: custom_metrics.GroupName, Version: v.version}, groupPriority, v.priority)
	}
}

// resourcesOf returns the resources of metrics, sorted as these are, with a
// subresource for each metric. The name of a resource with a group is
// RESOURCE.GROUP, as in the paths of this API.
func resourcesOf(metrics []provider.CustomMetricInfo) (list []apidiscoveryv2.APIResourceDiscovery) {
	for _, m := range metrics {
		if name := m.GroupResource.String(); len(list) == 0 || list[len(list)-1].Resource != name {
			r := apidiscoveryv2.APIResourceDiscovery{
				Resource: name, Scope: apidiscoveryv2.ScopeCluster,
				ResponseKind: &metav1.GroupVersionKind{}, // empty, because the object itself is not served here; nil makes old clients panic
			}
			if m.Namespaced {
				r.Scope = apidiscoveryv2.ScopeNamespace
			}
			list = append(list, r)
		}
		r := &list[len(list)-1]
		r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: m.Metric, ResponseKind: &metav1.GroupVersionKind{Kind: "MetricValueList"}, Verbs: metav1.Verbs{"get"},
		})
	}
	return list
}
