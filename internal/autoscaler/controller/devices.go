// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// devices holds the numbers of GPU devices of nodes and resource claims, from the API
// server. A MIG instance and a replica of a shared GPU are one device each.
type devices struct {
	resources []string // in addition to those of gpu.IsResource

	mu        sync.RWMutex
	nodes     map[string]int               // capacity, by node
	about     map[string]nodeAbout         // by node
	claims    map[types.NamespacedName]int // devices allocated to a ResourceClaim
	templates map[types.NamespacedName]int // devices that a ResourceClaimTemplate requests
}

func newDevices(resources []string) *devices {
	return &devices{
		resources: resources, nodes: map[string]int{}, about: map[string]nodeAbout{},
		claims: map[types.NamespacedName]int{}, templates: map[types.NamespacedName]int{},
	}
}

// watchDevices watches nodes, and resource claims once the API server serves them.
// Kinds that cannot be watched limit no exporter's claim.
func (c *Controller) watchDevices(ctx context.Context) {
	d := c.devices
	c.running.Go(func() {
		_ = c.deps.Watch(ctx, &corev1.Node{}, eventHandler(d.nodeChanged)) // the only possible error is that of ctx
	})
	c.running.Go(func() {
		kind := metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"}
		if c.deps.AwaitInstalled(ctx, &resourcev1.ResourceClaim{TypeMeta: kind}) != nil {
			return
		}
		if c.deps.Watch(ctx, &resourcev1.ResourceClaim{}, eventHandler(d.claimChanged)) == nil {
			_ = c.deps.Watch(ctx, &resourcev1.ResourceClaimTemplate{}, eventHandler(d.templateChanged))
		}
	})
}

func (d *devices) nodeChanged(obj client.Object, gone bool) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if gone {
		delete(d.nodes, node.Name)
		delete(d.about, node.Name)
		return
	}
	d.about[node.Name] = aboutNode(node)
	// An unhealthy device is no longer allocatable, but its pod still holds it.
	d.nodes[node.Name] = max(d.countResources(node.Status.Capacity), d.countResources(node.Status.Allocatable))
}

// nodeAbout is what the page shows of a node beside its GPUs.
type nodeAbout struct {
	pool, model string
	fault       string // why GPUHealthy is False
}

// aboutNode reads a node's labels and its condition. A node without a label of
// its pool is pooled by the model of its GPUs.
func aboutNode(node *corev1.Node) nodeAbout {
	a := nodeAbout{pool: gpu.FirstLabel(node.Labels, gpu.NodePoolLabels()), model: gpu.FirstLabel(node.Labels, gpu.ModelLabels())}
	if a.pool == "" {
		a.pool = a.model
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == gpu.NodeHealthCondition && c.Status == corev1.ConditionFalse {
			a.fault = c.Reason + ": " + c.Message
		}
	}
	return a
}

func (d *devices) claimChanged(obj client.Object, gone bool) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return
	}
	key := client.ObjectKeyFromObject(claim)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.claims, key)
	if gone || claim.Status.Allocation == nil {
		return
	}
	n := 0
	for _, r := range claim.Status.Allocation.Devices.Results {
		if isGPUDriver(r.Driver) {
			n++
		}
	}
	d.claims[key] = n
}

func (d *devices) templateChanged(obj client.Object, gone bool) {
	t, ok := obj.(*resourcev1.ResourceClaimTemplate)
	if !ok {
		return
	}
	key := client.ObjectKeyFromObject(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.templates, key)
	if !gone {
		d.templates[key] = requestedDevices(&t.Spec.Spec)
	}
}

// isGPUDriver reports whether a DRA driver's devices are GPUs. NVIDIA's other driver,
// compute-domain.nvidia.com, allocates IMEX channels.
func isGPUDriver(driver string) bool {
	return strings.HasPrefix(driver, "gpu.")
}

// isGPUClass reports whether a device class has GPUs. NVIDIA's classes are
// gpu.nvidia.com, mig.nvidia.com and vfio.gpu.nvidia.com.
func isGPUClass(class string) bool {
	return !strings.HasPrefix(class, "compute-domain") && (strings.Contains(class, "gpu") || strings.Contains(class, "mig."))
}

// requestedDevices returns the number of GPU devices that a claim requests, the
// maximum of alternatives. A request for all devices of a node counts as one, since
// the number is only known after the allocation.
func requestedDevices(spec *resourcev1.ResourceClaimSpec) (n int) {
	count := func(class string, count int64) int {
		if !isGPUClass(class) {
			return 0
		}
		return int(min(max(count, 1), resourcev1.AllocationResultsMaxSize))
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		most := 0
		if r.Exactly != nil {
			most = count(r.Exactly.DeviceClassName, r.Exactly.Count)
		}
		for _, alternative := range r.FirstAvailable {
			most = max(most, count(alternative.DeviceClassName, alternative.Count))
		}
		n += most
	}
	return min(n, resourcev1.AllocationResultsMaxSize)
}

// countResources returns the number of GPU devices in a list of resources.
func (d *devices) countResources(list corev1.ResourceList) (n int) {
	for name, q := range list {
		if gpu.IsResource(string(name), d.resources) {
			n += int(min(max(q.Value(), 0), maxResourceCount))
		}
	}
	return n
}

// maxResourceCount bounds the count of one resource: a node with 1,024 devices, each
// shared by 1,024 pods.
const maxResourceCount = 1 << 20

// containerDevices returns the number of devices that a pod's containers request. Init
// containers end before the others start, except for sidecars.
func (d *devices) containerDevices(spec *corev1.PodSpec) int {
	together, before := 0, 0
	for i := range spec.Containers {
		together += d.countResources(spec.Containers[i].Resources.Limits)
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if n := d.countResources(c.Resources.Limits); c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			together += n
		} else {
			before = max(before, n)
		}
	}
	return max(together, before)
}

// podDevices returns the number of devices that the pod holds or will hold. known is
// false while the devices of one of its resource claims are not known.
func (d *devices) podDevices(pod *corev1.Pod) (n int, known bool) {
	n = d.containerDevices(&pod.Spec)
	if len(pod.Spec.ResourceClaims) == 0 {
		return n, true
	}
	names := make(map[string]string, len(pod.Status.ResourceClaimStatuses))
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, ref := range pod.Spec.ResourceClaims {
		name := names[ref.Name]
		if ref.ResourceClaimName != nil {
			name = *ref.ResourceClaimName
		}
		held, ok := d.claims[types.NamespacedName{Namespace: pod.Namespace, Name: name}]
		if !ok {
			return 0, false
		}
		n += held
	}
	return n, true
}

// maxDevices returns an upper bound of the pod's devices: its requests, else the
// devices of its node; -1 if neither is known.
func (d *devices) maxDevices(pod *corev1.Pod) int {
	if n, known := d.podDevices(pod); known {
		return n
	}
	if n, known := d.nodeCapacity(pod.Spec.NodeName); known {
		return n
	}
	return -1
}

// nodeCapacity returns the number of devices of a node. It is not known for a node
// without GPU resources, such as one whose devices are allocated by resource claims.
func (d *devices) nodeCapacity(node string) (n int, known bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	n = d.nodes[node]
	return n, n > 0
}

// templateDevices returns the number of devices that a pod of this template requests.
// A claim that all pods share counts for each of them, like a shared GPU.
func (d *devices) templateDevices(namespace string, spec *corev1.PodSpec) int {
	n := d.containerDevices(spec)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for _, ref := range spec.ResourceClaims {
		switch {
		case ref.ResourceClaimTemplateName != nil:
			n += d.templates[types.NamespacedName{Namespace: namespace, Name: *ref.ResourceClaimTemplateName}]
		case ref.ResourceClaimName != nil:
			n += d.claims[types.NamespacedName{Namespace: namespace, Name: *ref.ResourceClaimName}]
		}
	}
	return n
}

// perReplica returns the number of devices of a replica: the maximum of the requests
// of its template and, for pods with resource claims, of the devices of its pods.
func (d *devices) perReplica(t *target, pods []*corev1.Pod) int32 {
	n := 0
	if t.pods != nil {
		n = d.templateDevices(t.namespace, t.pods)
	}
	for _, pod := range pods {
		if t.pods != nil && len(pod.Spec.ResourceClaims) == 0 {
			continue
		}
		if held, known := d.podDevices(pod); known && !replica.Finished(pod) {
			n = max(n, held)
		}
	}
	return int32(min(n, maxResourceCount))
}

// Holder returns the API server's facts about a pod, for readers of exporters' claims.
func (c *Controller) Holder(pod *corev1.Pod) series.Holder { return c.devices.holder(pod) }

// holder returns the argument of series.Store.PodOn for a pod.
func (d *devices) holder(pod *corev1.Pod) series.Holder {
	return series.Holder{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, Devices: d.maxDevices(pod)}
}

// verifiedValues reads values from the store, and drops those whose owner the API
// server contradicts.
type verifiedValues struct {
	*series.Store
	devices *devices
}

// Field returns the value of a field of the pod's GPUs.
func (v verifiedValues) Field(pod *corev1.Pod, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Reading, bool) {
	if pod.Spec.NodeName == "" {
		return series.Reading{}, false
	}
	return v.PodOn(v.devices.holder(pod), f, now, maxAge)
}
