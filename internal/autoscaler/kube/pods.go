// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// PodDeletionCost is the annotation by which a ReplicaSet selects the pods to delete.
const PodDeletionCost = corev1.PodDeletionCost

// slimTransform returns a transform that drops unused fields of cached objects. more
// are names of resources that count GPUs, as in gpu.IsResource.
func slimTransform(more []string) toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	return func(obj any) (any, error) {
		switch o := obj.(type) {
		case *corev1.Pod:
			return slimPod(o, more), nil
		case *corev1.Node:
			return slimNode(o, more), nil
		case *resourcev1.ResourceClaim:
			return slimClaim(o), nil
		case *appsv1.ReplicaSet:
			return &appsv1.ReplicaSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Selector: o.Spec.Selector}}, nil
		case *batchv1.Job:
			return &batchv1.Job{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: batchv1.JobSpec{Selector: o.Spec.Selector}}, nil
		case *metav1.PartialObjectMetadata:
			return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: slimMeta(&o.ObjectMeta)}, nil
		}
		return strip(obj)
	}
}

// slimMeta keeps the identity of an object, its labels and its controller.
func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels}
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return slim
}

// slimNode keeps of a node how many GPUs it has, the labels of keptLabels, and its
// condition GPUHealthy.
func slimNode(node *corev1.Node, more []string) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Status:     corev1.NodeStatus{Capacity: slimResources(node.Status.Capacity, more), Allocatable: slimResources(node.Status.Allocatable, more)},
	}
	for _, key := range keptLabels() {
		if value, ok := node.Labels[key]; ok {
			if slim.Labels == nil {
				slim.Labels = map[string]string{}
			}
			slim.Labels[key] = value
		}
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; string(c.Type) == gpu.NodeHealthCondition {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), Message: excerpt.Of(c.Message, maxPodMessage)}}
		}
	}
	return slim
}

// keptLabels returns the labels of a node's pool and GPU model, and those by which GPU
// nodes are found.
func keptLabels() []string {
	keys := slices.Concat(gpu.NodePoolLabels(), gpu.ModelLabels())
	for _, sign := range gpu.NodeSigns() {
		keys = append(keys, sign.Label)
	}
	return keys
}

// slimClaim keeps the allocated devices of a resource claim.
func slimClaim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	slim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}}
	if a := claim.Status.Allocation; a != nil {
		slim.Status.Allocation = &resourcev1.AllocationResult{}
		for _, r := range a.Devices.Results {
			slim.Status.Allocation.Devices.Results = append(slim.Status.Allocation.Devices.Results,
				resourcev1.DeviceRequestAllocationResult{Driver: r.Driver, Pool: r.Pool, Device: r.Device})
		}
	}
	return slim
}

// slimPod keeps the fields of a pod that the controller uses. Pods take the largest
// part of the controller's memory.
func slimPod(pod *corev1.Pod, more []string) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, ResourceClaims: pod.Spec.ResourceClaims},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses,
		},
	}
	if len(pod.Status.HostIPs) > 1 { // the first is HostIP
		slim.Status.HostIPs = pod.Status.HostIPs
	}
	slim.OwnerReferences = slimOwner(pod)
	if cost, ok := pod.Annotations[PodDeletionCost]; ok {
		slim.Annotations = map[string]string{PodDeletionCost: cost}
	}
	for i := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, slimContainer(&pod.Spec.Containers[i], more))
	}
	for i := range pod.Spec.InitContainers {
		c := slimContainer(&pod.Spec.InitContainers[i], more)
		if c.RestartPolicy = pod.Spec.InitContainers[i].RestartPolicy; c.Resources.Limits != nil {
			slim.Spec.InitContainers = append(slim.Spec.InitContainers, c)
		}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && holdsGPUs(slim) {
		slim.OwnerReferences = []metav1.OwnerReference{*owner} // for kube_pod_owner
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.PodScheduled {
			slim.Status.Conditions = append(slim.Status.Conditions, slimCondition(c))
		}
	}
	slim.Status.InitContainerStatuses = stuckContainer(pod.Status.InitContainerStatuses)
	if slim.Status.InitContainerStatuses == nil {
		slim.Status.ContainerStatuses = stuckContainer(pod.Status.ContainerStatuses)
	}
	return slim
}

// holdsGPUs reports whether a pod of slimPod requests GPUs.
func holdsGPUs(slim *corev1.Pod) bool {
	limits := func(c corev1.Container) bool { return c.Resources.Limits != nil }
	return len(slim.Spec.ResourceClaims) > 0 || len(slim.Spec.InitContainers) > 0 || slices.ContainsFunc(slim.Spec.Containers, limits)
}

// The bounds of reasons and messages of the scheduler and the kubelet, in bytes. A
// GPUAutoscaler's status shows 200 bytes of a message.
const (
	maxPodReason  = 64
	maxPodMessage = 256
)

// slimCondition keeps the message only if it is the scheduler's reason why no node
// fits the pod.
func slimCondition(c *corev1.PodCondition) corev1.PodCondition {
	slim := corev1.PodCondition{
		Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), LastTransitionTime: c.LastTransitionTime,
	}
	if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
		slim.Message = excerpt.Of(c.Message, maxPodMessage)
	}
	return slim
}

// stuckContainer returns the first container that waits for a reason other than the
// normal steps of a start; nil: there is none.
func stuckContainer(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i := range all {
		w := all[i].State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
			continue
		}
		return []corev1.ContainerStatus{{Name: all[i].Name, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: excerpt.Of(w.Reason, maxPodReason), Message: excerpt.Of(w.Message, maxPodMessage)},
		}}}
	}
	return nil
}

func slimContainer(c *corev1.Container, more []string) corev1.Container {
	return corev1.Container{
		Name: c.Name, Ports: c.Ports, Resources: corev1.ResourceRequirements{Limits: slimResources(c.Resources.Limits, more)},
	}
}

// slimResources keeps the GPU resources of a list; nil if there are none.
func slimResources(list corev1.ResourceList, more []string) (slim corev1.ResourceList) {
	for name, q := range list {
		if gpu.IsResource(string(name), more) {
			if slim == nil {
				slim = corev1.ResourceList{}
			}
			slim[name] = q
		}
	}
	return slim
}

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
		byOwner: map[ownerKey]*ownedPods{},
		sorted:  map[labelKey][]*corev1.Pod{},
		changed: func(_, _ *corev1.Pod) {},
	}
}

// OnChange sets f, which is called after each change and must not block. old is nil
// for a new pod, and pod is nil for a deleted one. It must be called before the
// informer runs.
func (p *Pods) OnChange(f func(old, pod *corev1.Pod)) { p.changed = f }

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
	p.changed(old, pod)
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
		list = append(list, pod)
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
