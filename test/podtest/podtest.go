// SPDX-License-Identifier: Apache-2.0

// Package podtest makes pods, and what exporters expose about their GPUs, for tests.
package podtest

import (
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// List is an index of pods.
type List struct{ Pods []*corev1.Pod }

// Select returns the pods that the selector matches, of all namespaces if namespace is empty.
func (l *List) Select(namespace string, sel labels.Selector) (out []*corev1.Pod) {
	for _, p := range l.Pods {
		if (namespace == "" || p.Namespace == namespace) && sel.Matches(labels.Set(p.Labels)) {
			out = append(out, p)
		}
	}
	return out
}

// Get finds a pod by its name.
func (l *List) Get(namespace, name string) (*corev1.Pod, bool) {
	i := slices.IndexFunc(l.Pods, func(p *corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		return nil, false
	}
	return l.Pods[i], true
}

// GPUResource is the resource of NVIDIA's device plugin for whole GPUs.
const GPUResource = "nvidia.com/gpu"

// Pod returns a running pod of the namespace ns on node-1 with the label app and one
// GPU.
func Pod(app, name string, created time.Time, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(name), Labels: map[string]string{"app": app},
			CreationTimestamp: metav1.Time{Time: created},
		},
		Spec:   corev1.PodSpec{NodeName: "node-1", Containers: []corev1.Container{Container(GPUResource, "1")}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1"},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// Container returns a container with limits, which are names of resources and their
// quantities.
func Container(limits ...string) corev1.Container {
	list := corev1.ResourceList{}
	for i := 0; i+1 < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return corev1.Container{Resources: corev1.ResourceRequirements{Limits: list}}
}

// Containers replaces a pod's containers.
func Containers(list ...corev1.Container) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.Containers = list }
}

// ResourceClaim returns a resource claim with an allocated device of each driver.
func ResourceClaim(name string, drivers ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, driver := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Driver: driver})
	}
	return c
}

// GeneratedClaim makes a pod use a resource claim that is generated from a template;
// without a name, it is not generated yet.
func GeneratedClaim(template, claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "r", ResourceClaimTemplateName: &template})
		if claim != "" {
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: "r", ResourceClaimName: &claim})
		}
	}
}

// Node returns a node of a capacity, which is names of resources and their quantities.
func Node(name string, capacity ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Capacity: Container(capacity...).Resources.Limits}}
}

// Condition sets a condition of a pod.
func Condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string, at time.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = slices.DeleteFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.Time{Time: at},
		})
	}
}

// Ready makes a pod ready.
func Ready(at time.Time) func(*corev1.Pod) {
	return Condition(corev1.PodReady, corev1.ConditionTrue, "", at)
}

// Device is a GPU on an exporter's page.
type Device struct {
	Name   string
	Owner  *corev1.Pod // nil: none
	Values map[gpu.FieldID]float64
	Slices int // of a MIG instance, as its profile says; 0: not known
}

// Utilization returns a device of one value.
func Utilization(name string, percent float64, owner *corev1.Pod) Device {
	return Device{Name: name, Owner: owner, Values: map[gpu.FieldID]float64{gpu.GPUUtil: percent}}
}

// Expose stores a scrape of an exporter with these devices.
func Expose(t testing.TB, store *series.Store, exporter string, labels series.TargetLabels, at time.Time, devices ...Device) {
	t.Helper()
	target := store.Target(exporter, labels)
	var owners []series.DeviceOwners
	var b series.Batch
	for i, d := range devices {
		for field, v := range d.Values {
			ref, ok := target.Ref(series.Key{Device: d.Name, Field: field})
			if !ok {
				t.Fatalf("no room for a series of %s", d.Name)
			}
			b.Add(ref, v)
		}
		target.SetPlace(d.Name, i, d.Slices)
		if d.Owner != nil {
			owners = append(owners, series.DeviceOwners{Device: d.Name, Owners: []gpu.Owner{{Namespace: d.Owner.Namespace, Pod: d.Owner.Name}}})
		}
	}
	target.SetOwners(at, owners)
	if _, err := target.Append(at, &b); err != nil {
		t.Fatal(err)
	}
}

// ExposeUtilization stores a scrape of an exporter on a node, with a GPU for each pod.
func ExposeUtilization(t testing.TB, store *series.Store, exporter, node string, at time.Time, percent float64, pods ...*corev1.Pod) {
	t.Helper()
	devices := make([]Device, 0, len(pods))
	for _, p := range pods {
		devices = append(devices, Utilization("GPU-"+p.Name, percent, p))
	}
	Expose(t, store, exporter, series.TargetLabels{Node: node}, at, devices...)
}

// CPUTime returns the processor time that this process has used.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
