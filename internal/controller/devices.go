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
	"github.com/gpupilot/gpupilot/internal/series"
)

// devices knows how many GPU devices pods may hold and nodes have, as the API
// server says. A MIG instance and a replica of a shared GPU are a device each.
type devices struct {
	resources []string // beside gpu.IsResource's own

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

// lookForDRA is how often it is checked whether resource.k8s.io is served.
const lookForDRA = time.Minute

// watchDevices watches nodes, and resource claims from when their kinds are
// served on. What cannot be watched limits no claim.
func (c *Controller) watchDevices(ctx context.Context) {
	d := c.devices
	c.running.Go(func() {
		_ = c.deps.Watch(ctx, &corev1.Node{}, changes(d.nodeChanged)) // its only error is ctx's
	})
	c.running.Go(func() {
		kind := metav1.TypeMeta{APIVersion: resourcev1.SchemeGroupVersion.String(), Kind: "ResourceClaim"}
		for !c.deps.Installed(&resourcev1.ResourceClaim{TypeMeta: kind}) {
			select {
			case <-ctx.Done():
				return
			case <-time.After(lookForDRA):
			}
		}
		if c.deps.Watch(ctx, &resourcev1.ResourceClaim{}, changes(d.claimChanged)) == nil {
			_ = c.deps.Watch(ctx, &resourcev1.ResourceClaimTemplate{}, changes(d.templateChanged))
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
	// A device that becomes unhealthy leaves the allocatable ones and stays with its pod.
	d.nodes[node.Name] = max(d.sum(node.Status.Capacity), d.sum(node.Status.Allocatable))
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
		d.templates[key] = requested(&t.Spec.Spec)
	}
}

// isGPUDriver reports whether a DRA driver's devices are GPUs. NVIDIA's second
// driver, compute-domain.nvidia.com, gives out IMEX channels.
func isGPUDriver(driver string) bool {
	return strings.HasPrefix(driver, "gpu.")
}

// isGPUClass is isGPUDriver for the names of device classes. NVIDIA's are
// gpu.nvidia.com, mig.nvidia.com and vfio.gpu.nvidia.com.
func isGPUClass(class string) bool {
	return !strings.HasPrefix(class, "compute-domain") && (strings.Contains(class, "gpu") || strings.Contains(class, "mig."))
}

// requested is how many GPU devices a claim requests; of alternatives the most.
// A request for all devices of a node counts as one: the number is known once a
// claim is allocated.
func requested(spec *resourcev1.ResourceClaimSpec) (n int) {
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

// sum is how many devices a list of resources counts.
func (d *devices) sum(list corev1.ResourceList) (n int) {
	for name, q := range list {
		if gpu.IsResource(string(name), d.resources) {
			n += int(min(max(q.Value(), 0), maxReplicasOfGPU))
		}
	}
	return n
}

// maxReplicasOfGPU bounds what one resource can count: a node of 1,024 devices,
// each shared by 1,024 pods.
const maxReplicasOfGPU = 1 << 20

// ofContainers is how many devices a pod's containers request. Init containers
// run before the others, except for sidecars, which stay.
func (d *devices) ofContainers(spec *corev1.PodSpec) int {
	together, before := 0, 0
	for i := range spec.Containers {
		together += d.sum(spec.Containers[i].Resources.Limits)
	}
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		if n := d.sum(c.Resources.Limits); c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			together += n
		} else {
			before = max(before, n)
		}
	}
	return max(together, before)
}

// count is how many devices the pod holds or is to hold. It is not known while
// one of its resource claims is not.
func (d *devices) count(pod *corev1.Pod) (n int, known bool) {
	n = d.ofContainers(&pod.Spec)
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

// most is how many devices the pod can hold at most: what it requests, else what
// its node has; negative where neither is known.
func (d *devices) most(pod *corev1.Pod) int {
	if n, known := d.count(pod); known {
		return n
	}
	if n, known := d.capacity(pod.Spec.NodeName); known {
		return n
	}
	return -1
}

// capacity is how many devices a node has. It is not known of a node that counts
// none, as where all devices are given out through resource claims.
func (d *devices) capacity(node string) (n int, known bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	n = d.nodes[node]
	return n, n > 0
}

// ofTemplate is how many devices a pod of this template requests, 0 if none. A
// claim that all pods share counts for each of them, as a shared GPU does.
func (d *devices) ofTemplate(namespace string, spec *corev1.PodSpec) int {
	n := d.ofContainers(spec)
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

// perReplica is how many devices a replica takes: what its template requests or,
// where that does not say, the most of its pods.
func (d *devices) perReplica(t *target, pods []*corev1.Pod) int32 {
	n := 0
	if t.pods != nil {
		n = d.ofTemplate(t.namespace, t.pods)
	}
	for _, pod := range pods {
		if t.pods != nil && len(pod.Spec.ResourceClaims) == 0 {
			continue
		}
		if held, known := d.count(pod); known && !Finished(pod) {
			n = max(n, held)
		}
	}
	return int32(min(n, maxReplicasOfGPU))
}

// holder is the pod as series.Store.PodOn wants it.
func (d *devices) holder(pod *corev1.Pod) series.Holder {
	return series.Holder{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, Devices: d.most(pod)}
}

// vetted are the store's readings, as far as the API server agrees with who
// they are said to be of.
type vetted struct {
	*series.Store
	devices *devices
}

// Field is the value of a field of the pod's GPUs.
func (v vetted) Field(pod *corev1.Pod, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Reading, bool) {
	if pod.Spec.NodeName == "" {
		return series.Reading{}, false
	}
	return v.PodOn(v.devices.holder(pod), f, now, maxAge)
}
