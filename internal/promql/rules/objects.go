// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	k8slabels "k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/promql/source"
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
	infos   []source.Metric
}

// Metrics implements metricsapi.Source.
func (m *Manager) Metrics() []source.Metric {
	s := m.deps.Store
	m.list.mu.Lock()
	defer m.list.mu.Unlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	if m.list.made && m.list.changes == s.changes {
		return m.list.infos
	}
	m.list.infos = nil
	for name, set := range s.byName {
		for r := range set.resources {
			m.list.infos = append(m.list.infos, source.Metric{GroupResource: r.group, Namespaced: r.namespaced, Metric: name})
		}
	}
	slices.SortFunc(m.list.infos, func(a, b source.Metric) int { return strings.Compare(a.String(), b.String()) })
	m.list.changes, m.list.made = s.changes, true
	return m.list.infos
}

// object is an object that a series' labels name.
type object struct {
	resource        resource
	namespace, name string // namespace is empty for cluster-scoped objects
}

// objects returns the objects that a series describes. Cluster-scoped ones need rules
// that may speak for all namespaces, except for the rules' own namespace.
func (r *result) objects(namespaceLabel string) (out []object) {
	namespace := r.labels.Get(namespaceLabel)
	r.labels.Range(func(l labels.Label) {
		x, ok := resources[l.Name]
		switch {
		case !ok:
		case x.namespaced && namespace != "":
			out = append(out, object{x, namespace, l.Value})
		case !x.namespaced && r.trusted:
			out = append(out, object{x, "", l.Value})
		}
	})
	if len(out) == 0 && namespace != "" {
		out = append(out, object{resource{group: namespaces}, "", namespace})
	}
	return out
}

// maxAge is how old a value may be: three evaluations, and at least 5 s, as for the
// values of a device.
func (r *result) maxAge() time.Duration { return max(3*r.interval, 5*time.Second) }

// Values implements metricsapi.Source. A value is missing if the last evaluation of the rule
// did not return it, or is too old.
func (m *Manager) Values(_ context.Context, q source.Query) ([]source.Value, error) {
	s := m.deps.Store
	s.mu.RLock()
	defer s.mu.RUnlock()
	set := s.byName[q.Metric]
	if set == nil {
		return nil, source.ErrUnknownMetric
	}
	namespaced := q.Namespace != ""
	if set.resources[resource{q.Resource, namespaced}] == 0 {
		return nil, source.ErrUnknownMetric
	}
	out := make([]source.Value, 0, min(len(q.Names), len(set.objects)))
	for _, name := range q.Names {
		v, ok, err := valueOf(name, set.objects[object{resource{q.Resource, namespaced}, q.Namespace, name}], &q)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, v)
		}
	}
	return out, nil
}

// valueOf returns the value of the one series of an object that the selector selects and
// that is not too old.
func valueOf(name string, all []*result, q *source.Query) (v source.Value, ok bool, err error) {
	for _, r := range all {
		if r.ended() || q.Now.Sub(r.last()) > r.maxAge() || !q.Selector.Matches(seriesLabels{r.labels}) {
			continue
		}
		if ok {
			return v, false, apierrors.NewBadRequest(fmt.Sprintf("metric %s: a recording rule returns several series for %s %s: aggregate them in the rule, or select one with a metric selector", q.Metric, q.Resource, name))
		}
		v, ok = source.Value{Name: name, Value: r.points[len(r.points)-1].V, At: r.last()}, true
	}
	return v, ok, nil
}

// last returns the time of the newest sample.
func (r *result) last() time.Time { return time.UnixMilli(r.points[len(r.points)-1].T) }

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
