// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"iter"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// MetricPods provides the serving pods and their newest values to the metrics API. A
// requested field is scraped from then on. Values of pods that the API server
// contradicts are absent, as for all readers.
type MetricPods struct {
	c       *Controller
	rosters *rosters
}

// MetricPods returns the pods for the metrics API.
func (c *Controller) MetricPods() MetricPods { return MetricPods{c, newRosters()} }

// State reports whether a pod serves, and whether there is one.
func (m MetricPods) State(namespace, pod string) (serving, found bool) {
	p, found := m.c.deps.Pods.Get(namespace, pod)
	return found && replica.Serving(p), found
}

// Serving returns the names of the namespace's serving pods that the selector matches,
// sorted.
func (m MetricPods) Serving(namespace string, selector labels.Selector) []string {
	var names []string
	for _, pod := range m.c.deps.Pods.Select(namespace, selector) {
		if replica.Serving(pod) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// Value returns a pod's newest value.
func (m MetricPods) Value(namespace, pod string, q stat.Query) (series.Sample, bool) {
	if q.Metric != "" {
		return m.c.deps.Store.PodMetric(namespace, pod, q.Metric, q.Now, q.MaxAge)
	}
	m.recordUse(q)
	p, ok := m.c.deps.Pods.Get(namespace, pod)
	if !ok {
		return series.Sample{}, false
	}
	r, ok := trust.Values{Store: m.c.deps.Store, Devices: m.c.deps.Devices}.Field(p, q.Field, q.Now, q.MaxAge)
	return r.Sample, ok
}

// recordUse has the field of q scraped.
func (m MetricPods) recordUse(q stat.Query) {
	if m.c.fieldUses.recordUse(q.Field, q.Now) {
		m.c.requestDiscovery()
	}
}

// Values returns the serving pods of a namespace that the selector matches and that
// have a value, sorted by name.
func (m MetricPods) Values(namespace string, selector labels.Selector, q stat.Query) iter.Seq2[string, series.Sample] {
	pods := m.c.deps.Pods.Select(namespace, selector)
	if q.Metric != "" {
		return m.ownValues(pods, q)
	}
	m.recordUse(q)
	return func(yield func(string, series.Sample) bool) {
		r := m.rosters.take(rosterKey{namespace, selector.String()}, q.Now)
		defer m.rosters.put(r)
		r.update(pods, m.c.deps.Devices)
		reader := m.c.deps.Store.FieldReader(q.Field, q.Now, q.MaxAge)
		for i := range r.members {
			if s, ok := r.members[i].read(&reader, m.c.deps.Devices); ok && !yield(r.members[i].holder.Pod, s) {
				return
			}
		}
	}
}

// ownValues returns the values of a metric that pods expose themselves.
func (m MetricPods) ownValues(pods []*corev1.Pod, q stat.Query) iter.Seq2[string, series.Sample] {
	return func(yield func(string, series.Sample) bool) {
		for _, pod := range pods {
			if !replica.Serving(pod) {
				continue
			}
			s, ok := m.c.deps.Store.PodMetric(pod.Namespace, pod.Name, q.Metric, q.Now, q.MaxAge)
			if ok && !yield(pod.Name, s) {
				return
			}
		}
	}
}

// member is one pod of a roster, with what follows from its version alone.
type member struct {
	pod     *corev1.Pod
	holder  series.Holder
	handle  series.PodHandle
	serving bool // and scheduled
	// counted is false if holder.Devices depends on other objects: the pod's resource
	// claims. It is then counted at each read.
	counted bool
}

func newMember(pod *corev1.Pod, d *trust.Devices) member {
	return member{
		pod: pod, holder: d.Holder(pod), serving: replica.Serving(pod) && pod.Spec.NodeName != "",
		counted: len(pod.Spec.ResourceClaims) == 0,
	}
}

// read returns the member's newest value. The store checks at each read what exporters
// claim about the pod.
func (m *member) read(r *series.FieldReader, d *trust.Devices) (series.Sample, bool) {
	if !m.serving {
		return series.Sample{}, false
	}
	if !m.counted {
		m.holder.Devices = d.MostOfPod(m.pod)
	}
	v, ok := r.PodOn(&m.holder, &m.handle)
	return v.Sample, ok
}
