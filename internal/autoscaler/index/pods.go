// SPDX-License-Identifier: Apache-2.0

// Package index finds pods by name, label and owner, and the objects that have custom
// metrics beside pods.
package index

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Pods indexes the cluster's pods by name and by label. It is an event handler for a
// pod informer. The returned pods are shared and must not be changed.
type Pods struct {
	mu      sync.RWMutex
	byName  map[podKey]*corev1.Pod
	byLabel map[labelKey]map[podKey]*corev1.Pod // namespace "" for all namespaces
	all     map[string]map[podKey]*corev1.Pod   // by namespace
	byOwner map[ownerKey]*ownedPods             // by controller

	// sorted caches the sets of byLabel that Select has returned, for one namespace and
	// sorted by name, until a pod joins or leaves the set.
	sorted  map[labelKey][]*corev1.Pod
	changes uint64

	changed []func(old, pod *corev1.Pod)
}

type podKey struct{ namespace, name string }

type labelKey struct{ namespace, key, value string }

var _ toolscache.ResourceEventHandler = (*Pods)(nil)

// NewPods makes an empty index.
func NewPods() *Pods {
	return &Pods{
		byName:  map[podKey]*corev1.Pod{},
		byLabel: map[labelKey]map[podKey]*corev1.Pod{},
		all:     map[string]map[podKey]*corev1.Pod{},
		byOwner: map[ownerKey]*ownedPods{},
		sorted:  map[labelKey][]*corev1.Pod{},
	}
}

// OnChange adds f, which is called after each change and must not block. old is nil
// for a new pod, and pod is nil for a deleted one. It must be called before the
// informer runs.
func (p *Pods) OnChange(f func(old, pod *corev1.Pod)) { p.changed = append(p.changed, f) }

// OnAdd handles a new pod.
func (p *Pods) OnAdd(obj any, _ bool) {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.set(podKey{pod.Namespace, pod.Name}, pod)
	}
}

// OnUpdate handles a changed pod.
func (p *Pods) OnUpdate(_, obj any) { p.OnAdd(obj, false) }

// OnDelete handles a deleted pod.
func (p *Pods) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if pod, ok := obj.(*corev1.Pod); ok {
		p.set(podKey{pod.Namespace, pod.Name}, nil)
	}
}

func (p *Pods) set(k podKey, pod *corev1.Pod) {
	p.mu.Lock()
	old := p.byName[k]
	if old != nil {
		p.unlink(k, old)
	}
	if pod != nil {
		p.link(k, pod)
	}
	p.updateSorted(k, old, pod)
	p.updateOwned(old, pod)
	p.mu.Unlock()
	for _, f := range p.changed {
		f(old, pod)
	}
}

func (p *Pods) link(k podKey, pod *corev1.Pod) {
	p.byName[k] = pod
	addToSet(p.all, k.namespace, k, pod)
	for key, value := range pod.Labels {
		addToSet(p.byLabel, labelKey{k.namespace, key, value}, k, pod)
		addToSet(p.byLabel, labelKey{"", key, value}, k, pod)
	}
}

func (p *Pods) unlink(k podKey, pod *corev1.Pod) {
	delete(p.byName, k)
	removeFromSet(p.all, k.namespace, k)
	for key, value := range pod.Labels {
		removeFromSet(p.byLabel, labelKey{k.namespace, key, value}, k)
		removeFromSet(p.byLabel, labelKey{"", key, value}, k)
	}
}

// updateSorted replaces a pod's older version in the cached sets, and drops the sets
// that it has joined or left.
func (p *Pods) updateSorted(k podKey, old, pod *corev1.Pod) {
	p.changes++
	if len(p.sorted) == 0 {
		return
	}
	if old != nil {
		for key, value := range old.Labels {
			set := labelKey{k.namespace, key, value}
			list, ok := p.sorted[set]
			if !ok {
				continue
			}
			at, found := slices.BinarySearchFunc(list, k.name, func(x *corev1.Pod, name string) int { return strings.Compare(x.Name, name) })
			if stays, has := labelOf(pod, key); found && has && stays == value {
				list[at] = pod
			} else {
				delete(p.sorted, set)
			}
		}
	}
	if pod != nil {
		for key, value := range pod.Labels {
			if was, had := labelOf(old, key); !had || was != value {
				delete(p.sorted, labelKey{k.namespace, key, value})
			}
		}
	}
}

// labelOf returns the value of a pod's label. The pod may be nil.
func labelOf(pod *corev1.Pod, key string) (value string, ok bool) {
	if pod != nil {
		value, ok = pod.Labels[key]
	}
	return value, ok
}

func addToSet[K comparable](m map[K]map[podKey]*corev1.Pod, key K, k podKey, pod *corev1.Pod) {
	if m[key] == nil {
		m[key] = map[podKey]*corev1.Pod{}
	}
	m[key][k] = pod
}

func removeFromSet[K comparable](m map[K]map[podKey]*corev1.Pod, key K, k podKey) {
	delete(m[key], k)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// Get returns a pod by its name.
func (p *Pods) Get(namespace, name string) (*corev1.Pod, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	pod, ok := p.byName[podKey{namespace, name}]
	return pod, ok
}

// Select lists the pods of a namespace that the selector matches, sorted by
// name; of all namespaces if it is empty, sorted by namespace and name.
func (p *Pods) Select(namespace string, selector labels.Selector) []*corev1.Pod {
	if set, ok := singleLabelSet(namespace, selector); ok {
		return p.selectSorted(set)
	}
	p.mu.RLock()
	var out []*corev1.Pod
	for _, set := range p.candidates(namespace, selector) {
		for _, pod := range set {
			if (namespace == "" || pod.Namespace == namespace) && selects(selector, pod.Labels) {
				out = append(out, pod)
			}
		}
	}
	p.mu.RUnlock()
	sortPods(out)
	return out
}

func sortPods(list []*corev1.Pod) {
	slices.SortFunc(list, func(a, b *corev1.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// selects reports whether a selector selects an object with these labels. If the object's
// own labels were not read, it is selected only where all objects are: a selector that
// excludes a label would match it.
func selects(selector labels.Selector, set labels.Set) bool {
	return selector.Matches(set) && (selector.Empty() || !set.Has(gpu.UnreadLabels))
}

// Unread returns the pods whose labels were not read, sorted by namespace and name.
func (p *Pods) Unread() []*corev1.Pod {
	p.mu.RLock()
	list := slices.Collect(maps.Values(p.byLabel[labelKey{"", gpu.UnreadLabels, "true"}]))
	p.mu.RUnlock()
	sortPods(list)
	return list
}

// singleLabelSet returns the key in byLabel of a selector for one label in one
// namespace, the usual form of a workload's selector. Such sets are cached sorted,
// since sorting thousands of pods for each request is expensive.
func singleLabelSet(namespace string, selector labels.Selector) (set labelKey, ok bool) {
	requirements, selectable := selector.Requirements()
	if namespace == "" || !selectable || len(requirements) != 1 {
		return labelKey{}, false
	}
	r, values := requirements[0], requirements[0].ValuesUnsorted()
	if op := r.Operator(); (op != selection.Equals && op != selection.DoubleEquals && op != selection.In) || len(values) != 1 {
		return labelKey{}, false
	}
	return labelKey{namespace, r.Key(), values[0]}, true
}

// selectSorted lists the pods of a set, sorted by name.
func (p *Pods) selectSorted(set labelKey) []*corev1.Pod {
	p.mu.RLock()
	if list, ok := p.sorted[set]; ok {
		defer p.mu.RUnlock()
		return slices.Clone(list)
	}
	changes := p.changes
	list := make([]*corev1.Pod, 0, len(p.byLabel[set]))
	for _, pod := range p.byLabel[set] {
		if set.key != gpu.UnreadLabels {
			list = append(list, pod)
		}
	}
	p.mu.RUnlock()
	slices.SortFunc(list, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(list) > 0 && p.changes == changes {
		p.sorted[set] = slices.Clone(list)
	}
	return list
}

// candidates returns disjoint sets that contain all pods that the selector matches:
// those of its requirement with the fewest pods.
func (p *Pods) candidates(namespace string, selector labels.Selector) []map[podKey]*corev1.Pod {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return nil
	}
	var best []map[podKey]*corev1.Pod
	fewest := -1
	for _, r := range requirements {
		if op := r.Operator(); op != selection.Equals && op != selection.DoubleEquals && op != selection.In {
			continue
		}
		var sets []map[podKey]*corev1.Pod
		n := 0
		for value := range r.Values() {
			set := p.byLabel[labelKey{namespace, r.Key(), value}]
			sets, n = append(sets, set), n+len(set)
		}
		if fewest < 0 || n < fewest {
			best, fewest = sets, n
		}
	}
	if fewest >= 0 {
		return best
	}
	if namespace != "" {
		return []map[podKey]*corev1.Pod{p.all[namespace]}
	}
	return []map[podKey]*corev1.Pod{p.byName}
}

// Len returns the number of pods.
func (p *Pods) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.byName)
}
