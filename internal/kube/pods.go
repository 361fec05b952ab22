// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// PodDeletionCost is the annotation that tells a ReplicaSet which pods go first.
const PodDeletionCost = corev1.PodDeletionCost

// gpuDomain is the prefix of the resources whose limits are kept of a pod.
const gpuDomain = "nvidia.com/"

// slim keeps of what is cached what we look at.
func slim() toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	return func(obj any) (any, error) {
		if _, ok := obj.(*corev1.Pod); ok {
			return slimPod(obj)
		}
		return strip(obj)
	}
}

// slimPod keeps of a pod what we look at: a cluster's pods are what the
// controller holds most of.
func slimPod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP,
		},
	}
	if len(pod.Status.HostIPs) > 1 { // the first is HostIP
		slim.Status.HostIPs = pod.Status.HostIPs
	}
	if cost, ok := pod.Annotations[PodDeletionCost]; ok {
		slim.Annotations = map[string]string{PodDeletionCost: cost}
	}
	for i := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, slimContainer(&pod.Spec.Containers[i]))
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady || c.Type == corev1.PodScheduled {
			slim.Status.Conditions = append(slim.Status.Conditions, corev1.PodCondition{
				Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return slim, nil
}

func slimContainer(c *corev1.Container) corev1.Container {
	slim := corev1.Container{Name: c.Name, Ports: c.Ports}
	for name, q := range c.Resources.Limits {
		if strings.HasPrefix(string(name), gpuDomain) {
			if slim.Resources.Limits == nil {
				slim.Resources.Limits = corev1.ResourceList{}
			}
			slim.Resources.Limits[name] = q
		}
	}
	return slim
}

// Pods are the cluster's pods, found by name or by labels without looking at
// them all. It is a handler of a pod informer's events. The pods that it gives
// are shared and not to be changed.
type Pods struct {
	mu      sync.RWMutex
	byName  map[podKey]*corev1.Pod
	byLabel map[labelKey]map[podKey]*corev1.Pod // namespace "" for all namespaces
	all     map[string]map[podKey]*corev1.Pod   // by namespace

	changed func(old, pod *corev1.Pod)
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
		changed: func(_, _ *corev1.Pod) {},
	}
}

// OnChange has f called after each change, with nil for a pod that was not
// there before or is not any more. It is called before the informer runs, and
// f does not block.
func (p *Pods) OnChange(f func(old, pod *corev1.Pod)) { p.changed = f }

// OnAdd is the informer's.
func (p *Pods) OnAdd(obj any, _ bool) {
	if pod, ok := obj.(*corev1.Pod); ok {
		p.set(podKey{pod.Namespace, pod.Name}, pod)
	}
}

// OnUpdate is the informer's.
func (p *Pods) OnUpdate(_, obj any) { p.OnAdd(obj, false) }

// OnDelete is the informer's.
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
	p.mu.Unlock()
	p.changed(old, pod)
}

func (p *Pods) link(k podKey, pod *corev1.Pod) {
	p.byName[k] = pod
	put(p.all, k.namespace, k, pod)
	for key, value := range pod.Labels {
		put(p.byLabel, labelKey{k.namespace, key, value}, k, pod)
		put(p.byLabel, labelKey{"", key, value}, k, pod)
	}
}

func (p *Pods) unlink(k podKey, pod *corev1.Pod) {
	delete(p.byName, k)
	drop(p.all, k.namespace, k)
	for key, value := range pod.Labels {
		drop(p.byLabel, labelKey{k.namespace, key, value}, k)
		drop(p.byLabel, labelKey{"", key, value}, k)
	}
}

func put[K comparable](m map[K]map[podKey]*corev1.Pod, key K, k podKey, pod *corev1.Pod) {
	if m[key] == nil {
		m[key] = map[podKey]*corev1.Pod{}
	}
	m[key][k] = pod
}

func drop[K comparable](m map[K]map[podKey]*corev1.Pod, key K, k podKey) {
	delete(m[key], k)
	if len(m[key]) == 0 {
		delete(m, key)
	}
}

// Get finds a pod by its name.
func (p *Pods) Get(namespace, name string) (*corev1.Pod, bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	pod, ok := p.byName[podKey{namespace, name}]
	return pod, ok
}

// Select lists the pods of a namespace that the selector matches, sorted by
// name; of all namespaces if it is empty, sorted by namespace and name.
func (p *Pods) Select(namespace string, selector labels.Selector) []*corev1.Pod {
	p.mu.RLock()
	var out []*corev1.Pod
	for _, set := range p.candidates(namespace, selector) {
		for _, pod := range set {
			if (namespace == "" || pod.Namespace == namespace) && selector.Matches(labels.Set(pod.Labels)) {
				out = append(out, pod)
			}
		}
	}
	p.mu.RUnlock()
	slices.SortFunc(out, func(a, b *corev1.Pod) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// candidates are disjoint sets of pods outside of which the selector matches
// none: those of its requirement that leaves the fewest.
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

// Len is how many pods there are.
func (p *Pods) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return len(p.byName)
}
