// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/prometheus/client_golang/prometheus"
)

// Devices holds the numbers of GPU devices of nodes and resource claims, from the API
// server, and collects those of nodes for /metrics. A MIG instance and a replica of a shared GPU are one device each.
type Devices struct {
	resources []string // in addition to those of gpu.IsResource
	prices    price.Table

	mu        sync.RWMutex
	nodes     map[string]int               // capacity, by node
	about     map[string]About             // by node
	claims    map[types.NamespacedName]int // devices allocated to a ResourceClaim
	templates map[types.NamespacedName]int // devices that a ResourceClaimTemplate requests
}

// NewDevices makes Devices without nodes and claims. resources are names of resources that
// count GPU devices, beside those of gpu.IsResource.
func NewDevices(resources []string) *Devices { return NewPricedDevices(resources, price.Table{}) }

// NewPricedDevices makes Devices whose GPUs have prices.
func NewPricedDevices(resources []string, prices price.Table) *Devices {
	return &Devices{
		resources: resources, prices: prices, nodes: map[string]int{}, about: map[string]About{},
		claims: map[types.NamespacedName]int{}, templates: map[types.NamespacedName]int{},
	}
}

// NodeChanged takes over a node, or forgets it.
func (d *Devices) NodeChanged(node *corev1.Node, gone bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if gone {
		delete(d.nodes, node.Name)
		delete(d.about, node.Name)
		return
	}
	about := aboutNode(node)
	if usd, ok := d.prices.Of(about.Pool, about.Model); ok {
		about.USDPerHour = &usd
	}
	d.about[node.Name] = about
	// An unhealthy device is no longer allocatable, but its pod still holds it.
	d.nodes[node.Name] = max(d.countResources(node.Status.Capacity), d.countResources(node.Status.Allocatable))
}

// About is what the page shows of a node beside its GPUs.
type About struct {
	Pool, Model string // that its labels name
	Fault       string // why GPUHealthy is False
	FaultSince  time.Time
	// USDPerHour is the price of one of its GPUs, whole; nil: it has none.
	USDPerHour *float64
}

// About returns what is known of a node.
func (d *Devices) About(node string) About {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.about[node]
}

// aboutNode reads a node's labels and its condition. A node without a label of
// its pool is pooled by the model of its GPUs.
func aboutNode(node *corev1.Node) About {
	a := About{Pool: gpu.FirstLabel(node.Labels, gpu.NodePoolLabels()), Model: gpu.FirstLabel(node.Labels, gpu.ModelLabels())}
	if a.Pool == "" {
		a.Pool = a.Model
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == gpu.NodeHealthCondition && c.Status == corev1.ConditionFalse {
			a.Fault, a.FaultSince = c.Reason+": "+c.Message, c.LastTransitionTime.Time
		}
	}
	return a
}

// ResourceClaimChanged takes over a resource claim, or forgets it.
func (d *Devices) ResourceClaimChanged(claim *resourcev1.ResourceClaim, gone bool) {
	key := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
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

// TemplateChanged takes over a template of resource claims, or forgets it.
func (d *Devices) TemplateChanged(t *resourcev1.ResourceClaimTemplate, gone bool) {
	key := types.NamespacedName{Namespace: t.Namespace, Name: t.Name}
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
func (d *Devices) countResources(list corev1.ResourceList) (n int) {
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
func (d *Devices) containerDevices(spec *corev1.PodSpec) int {
	together, before := d.devicesOfContainers(spec)
	return max(together, before)
}

// devicesOfContainers returns the number of devices that the containers request which run
// together, and those before.
func (d *Devices) devicesOfContainers(spec *corev1.PodSpec) (together, before int) {
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
	return together, before
}

// InUse returns the number of devices that a pod has while it serves: those of containers
// that have ended do not count. known is as of OfPod.
func (d *Devices) InUse(pod *corev1.Pod) (n int, known bool) {
	n, known = d.OfPod(pod)
	if together, before := d.devicesOfContainers(&pod.Spec); known && before > together {
		n -= before - together
	}
	return n, known
}

// OfPod returns the number of devices that the pod holds or will hold. known is
// false while the devices of one of its resource claims are not known.
func (d *Devices) OfPod(pod *corev1.Pod) (n int, known bool) {
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

// MostOfPod returns an upper bound of the pod's devices: its requests, else the
// devices of its node; -1 if neither is known.
func (d *Devices) MostOfPod(pod *corev1.Pod) int {
	if n, known := d.OfPod(pod); known {
		return n
	}
	if n, known := d.OfNode(pod.Spec.NodeName); known {
		return n
	}
	return -1
}

// OfNode returns the number of devices of a node. It is not known for a node
// without GPU resources, such as one whose devices are allocated by resource claims.
func (d *Devices) OfNode(node string) (n int, known bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	n = d.nodes[node]
	return n, n > 0
}

// templateDevices returns the number of devices that a pod of this template requests.
// A claim that all pods share counts for each of them, like a shared GPU.
func (d *Devices) templateDevices(namespace string, spec *corev1.PodSpec) int {
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

// PerReplica returns the number of devices of a replica: the maximum of the requests
// of its template and, for pods with resource claims, of the devices of its pods.
func (d *Devices) PerReplica(namespace string, template *replica.Template, units *replica.Units) int32 {
	n := 0
	if template.Pods != nil {
		n = d.templateDevices(namespace, template.Pods)
	}
	if template.Workers != nil {
		n += min(d.templateDevices(namespace, template.Workers), maxResourceCount) * int(template.NumWorkers)
	}
	claims := func(pod *corev1.Pod) bool { return len(pod.Spec.ResourceClaims) > 0 }
	for i := range units.Pods {
		members := units.Members(i)
		if template.Pods != nil && !slices.ContainsFunc(members, claims) {
			continue
		}
		held := 0
		for _, member := range members {
			if devices, known := d.OfPod(member); known && !replica.Finished(member) {
				held += devices
			}
		}
		n = max(n, held)
	}
	return int32(min(n, maxResourceCount))
}

// Holder returns the API server's facts about a pod, for readers of exporters' claims.
func (d *Devices) Holder(pod *corev1.Pod) series.Holder {
	return series.Holder{Namespace: pod.Namespace, Pod: pod.Name, Node: pod.Spec.NodeName, Devices: d.MostOfPod(pod)}
}

// Values reads values from the store, and drops those whose owner the API server
// contradicts.
type Values struct {
	*series.Store
	Devices *Devices
}

// Field returns the value of a field of the pod's GPUs.
func (v Values) Field(pod *corev1.Pod, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Reading, bool) {
	if pod.Spec.NodeName == "" {
		return series.Reading{}, false
	}
	return v.PodOn(v.Devices.Holder(pod), f, now, maxAge)
}

// nodeGPUs describes how many GPUs a node has.
var nodeGPUs = prometheus.NewDesc("gpupilot_node_gpus", "GPU devices that a node's status counts; of nodes that have any, with the pool and the model that the node's labels name.",
	[]string{"node", "pool", "model"}, nil)

// Describe implements prometheus.Collector.
func (d *Devices) Describe(ch chan<- *prometheus.Desc) { ch <- nodeGPUs }

// Collect implements prometheus.Collector.
func (d *Devices) Collect(ch chan<- prometheus.Metric) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for node, n := range d.nodes {
		if n > 0 {
			about := d.about[node]
			ch <- prometheus.MustNewConstMetric(nodeGPUs, prometheus.GaugeValue, float64(n), node, about.Pool, about.Model)
		}
	}
}
