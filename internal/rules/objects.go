// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	"github.com/gpupilot/gpupilot/internal/metricsapi"
)

// resource is a kind of object that a label can name.
type resource struct {
	group      schema.GroupResource
	namespaced bool
}

// resources are the labels that name an object, as prometheus-adapter's template
// <<.Resource>> and kube-state-metrics use them. The label of a namespace names the
// namespace only if there is no other of them.
var resources = map[string]resource{
	"pod":             {schema.GroupResource{Resource: "pods"}, true},
	"service":         {schema.GroupResource{Resource: "services"}, true},
	"deployment":      {schema.GroupResource{Group: "apps", Resource: "deployments"}, true},
	"statefulset":     {schema.GroupResource{Group: "apps", Resource: "statefulsets"}, true},
	"replicaset":      {schema.GroupResource{Group: "apps", Resource: "replicasets"}, true},
	"daemonset":       {schema.GroupResource{Group: "apps", Resource: "daemonsets"}, true},
	"job":             {schema.GroupResource{Group: "batch", Resource: "jobs"}, true},
	"ingress":         {schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}, true},
	"leaderworkerset": {schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}, true},
	"node":            {schema.GroupResource{Resource: "nodes"}, false},
}

// namespaces is the resource of a label with a namespace, and no other.
var namespaces = schema.GroupResource{Resource: "namespaces"}

// metricList is the list of custom metrics, which is made when the series change.
type metricList struct {
	mu      sync.Mutex
	changes uint64
	made    bool
	infos   []provider.CustomMetricInfo
}

// Metrics is metricsapi.Source's.
func (m *Manager) Metrics() []provider.CustomMetricInfo {
	s := m.deps.Store
	m.list.mu.Lock()
	defer m.list.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if m.list.made && m.list.changes == s.changes {
		return m.list.infos
	}
	found := map[provider.CustomMetricInfo]bool{}
	for name, all := range s.byName {
		for _, r := range all {
			for _, o := range m.objects(r) {
				found[provider.CustomMetricInfo{GroupResource: o.resource, Namespaced: o.namespaced, Metric: name}] = true
			}
		}
	}
	m.list.infos = slices.SortedFunc(maps.Keys(found), func(a, b provider.CustomMetricInfo) int { return strings.Compare(a.String(), b.String()) })
	m.list.changes, m.list.made = s.changes, true
	return m.list.infos
}

// object is an object that a series' labels name.
type object struct {
	resource   schema.GroupResource
	namespaced bool
	name       string
}

// objects returns the objects that a series describes. Cluster-scoped ones need rules
// that may speak for all namespaces, except for the rules' own namespace.
func (m *Manager) objects(r *result) (out []object) {
	namespace := r.labels.Get(m.cfg.Label)
	r.labels.Range(func(l labels.Label) {
		x, ok := resources[l.Name]
		if !ok || x.namespaced && namespace == "" || !x.namespaced && !r.trusted {
			return
		}
		out = append(out, object{x.group, x.namespaced, l.Value})
	})
	if len(out) == 0 && namespace != "" {
		out = append(out, object{namespaces, false, namespace})
	}
	return out
}

// maxAge is how old a value may be: three evaluations, and at least 5 s, as for the
// values of a device.
func (r *result) maxAge() time.Duration { return max(3*r.interval, 5*time.Second) }

// Values is metricsapi.Source's. A value is missing if the last evaluation of the rule
// did not return it, or is too old.
func (m *Manager) Values(_ context.Context, q metricsapi.SourceQuery) ([]metricsapi.SourceValue, error) {
	s := m.deps.Store
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := false
	found := map[string]metricsapi.SourceValue{}
	for _, r := range s.byName[q.Metric] {
		for _, o := range m.objects(r) {
			if o.resource != q.Resource {
				continue
			}
			known = true
			if o.namespaced && r.labels.Get(m.cfg.Label) != q.Namespace || !slices.Contains(q.Names, o.name) || !q.Selector.Matches(seriesLabels{r.labels}) {
				continue
			}
			if r.ended() || q.Now.Sub(r.last()) > r.maxAge() {
				continue
			}
			if _, twice := found[o.name]; twice {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("metric %s: a recording rule returns several series for %s %s: aggregate them in the rule, or select one with a metric selector", q.Metric, q.Resource, o.name))
			}
			found[o.name] = metricsapi.SourceValue{Name: o.name, Value: r.points[len(r.points)-1].v, At: r.last()}
		}
	}
	if !known {
		return nil, metricsapi.ErrUnknownMetric
	}
	out := make([]metricsapi.SourceValue, 0, len(found))
	for _, name := range q.Names {
		if v, ok := found[name]; ok {
			out = append(out, v)
		}
	}
	return out, nil
}

// last returns the time of the newest sample.
func (r *result) last() time.Time { return time.UnixMilli(r.points[len(r.points)-1].t) }

// seriesLabels are a series' labels as a Kubernetes selector reads them.
type seriesLabels struct{ l labels.Labels }

var _ k8slabels.Labels = seriesLabels{}

// Has is k8slabels.Labels's.
func (s seriesLabels) Has(name string) bool { return s.l.Has(name) }

// Get is k8slabels.Labels's.
func (s seriesLabels) Get(name string) string { return s.l.Get(name) }

// Lookup is k8slabels.Labels's.
func (s seriesLabels) Lookup(name string) (string, bool) { return s.l.Get(name), s.l.Has(name) }

// unknownResource returns the record of a rule whose own labels give a namespace and
// others, none of which names a resource: it is a series, but no custom metric. Empty:
// there is none.
func (g *Group) unknownResource(namespaceLabel string) (record string) {
	for i := range g.Rules {
		r := &g.Rules[i]
		if _, ok := r.Labels[namespaceLabel]; !ok || len(r.Labels) == 1 {
			continue
		}
		known := false
		for name := range r.Labels {
			_, isResource := resources[name]
			known = known || isResource
		}
		if !known {
			return r.Record
		}
	}
	return ""
}
