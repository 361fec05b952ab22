// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"context"
	"iter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// Pods finds pods in memory. The pods are shared and not to be changed.
type Pods interface {
	// Select lists the pods that the selector matches, of all namespaces if namespace is empty.
	Select(namespace string, selector labels.Selector) []*corev1.Pod
	// Get finds a pod by its name.
	Get(namespace, name string) (*corev1.Pod, bool)
}

// Deps holds the collaborators of a Reader.
type Deps struct {
	Store   *series.Store
	Pods    Pods
	Devices *trust.Devices
	Fields  *Fields

	// PodsOf appends the pods of a workload, which its controllers own and its selector
	// matches. The error is an API status error. nil: only pods have metrics.
	PodsOf func(ctx context.Context, dst []*corev1.Pod, r schema.GroupResource, namespace, name string) ([]*corev1.Pod, error)
	// TargetOf finds a scale target. The error is ErrUnknownWorkload if there is none.
	TargetOf func(ctx context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference) (Target, error)

	MaxAge time.Duration // the age above which a reading does not count, for WorkloadValue
}

// Reader reads the values of the GPUs in use, of pods and of other objects. A requested
// field is scraped from then on. Values of pods that the API server contradicts are
// absent, as for all readers.
type Reader struct {
	deps    Deps
	rosters *rosters
}

// NewReader makes a Reader.
func NewReader(deps Deps) *Reader { return &Reader{deps, newRosters()} }

// State reports whether a pod serves, and whether there is one.
func (m *Reader) State(namespace, pod string) (serving, found bool) {
	p, found := m.deps.Pods.Get(namespace, pod)
	return found && replica.Serving(p), found
}

// Serving returns the names of the namespace's serving pods that the selector matches,
// sorted.
func (m *Reader) Serving(namespace string, selector labels.Selector) []string {
	var names []string
	for _, pod := range m.deps.Pods.Select(namespace, selector) {
		if replica.Serving(pod) {
			names = append(names, pod.Name)
		}
	}
	return names
}

// Value returns a pod's newest value.
func (m *Reader) Value(namespace, pod string, q stat.Query) (series.Sample, bool) {
	if q.Metric != "" {
		return m.deps.Store.PodMetric(namespace, pod, q.Metric, q.Now, q.MaxAge)
	}
	m.deps.Fields.Request(q.Field, q.Now)
	p, ok := m.deps.Pods.Get(namespace, pod)
	if !ok {
		return series.Sample{}, false
	}
	r, ok := trust.Values{Store: m.deps.Store, Devices: m.deps.Devices}.Field(p, q.Field, q.Now, q.MaxAge)
	return r.Sample, ok
}

// Values returns the serving pods of a namespace that the selector matches and that
// have a value, sorted by name.
func (m *Reader) Values(namespace string, selector labels.Selector, q stat.Query) iter.Seq2[string, series.Sample] {
	pods := m.deps.Pods.Select(namespace, selector)
	if q.Metric != "" {
		return m.ownValues(pods, q)
	}
	m.deps.Fields.Request(q.Field, q.Now)
	return func(yield func(string, series.Sample) bool) {
		r := m.rosters.take(rosterKey{namespace, selector.String()}, q.Now)
		defer m.rosters.put(r)
		r.update(pods, m.deps.Devices)
		reader := m.deps.Store.FieldReader(q.Field, q.Now, q.MaxAge)
		for i := range r.members {
			if s, ok := r.members[i].read(&reader, m.deps.Devices); ok && !yield(r.members[i].holder.Pod, s) {
				return
			}
		}
	}
}

// ownValues returns the values of a metric that pods expose themselves.
func (m *Reader) ownValues(pods []*corev1.Pod, q stat.Query) iter.Seq2[string, series.Sample] {
	return func(yield func(string, series.Sample) bool) {
		for _, pod := range pods {
			if !replica.Serving(pod) {
				continue
			}
			s, ok := m.deps.Store.PodMetric(pod.Namespace, pod.Name, q.Metric, q.Now, q.MaxAge)
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
