// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// usesClaims makes a pod use resource claims.
func usesClaims(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "r-" + name, ResourceClaimName: &name})
		}
	}
}

func at(seconds int) time.Time {
	return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration(seconds) * time.Second)
}

func TestDevicesOfAPod(t *testing.T) {
	d := NewDevices([]string{"example.com/gpu"})
	d.ResourceClaimChanged(podtest.ResourceClaim("two", "gpu.nvidia.com", "gpu.nvidia.com"), false)
	d.ResourceClaimChanged(podtest.ResourceClaim("one", "gpu.nvidia.com", "compute-domain.nvidia.com", "nic.example.com"), false)
	d.ResourceClaimChanged(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pending"}}, false)
	d.NodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-8"}, Status: corev1.NodeStatus{
		Capacity:    podtest.Container(podtest.GPUResource, "8", "cpu", "64").Resources.Limits,
		Allocatable: podtest.Container(podtest.GPUResource, "7", "cpu", "60").Resources.Limits,
	}}, false)
	f := func(what string, want int, change ...func(*corev1.Pod)) {
		t.Helper()
		if got := d.MostOfPod(podtest.Pod("a", "p", at(0), change...)); got != want {
			t.Errorf("%s: %d devices, want %d", what, got, want)
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	init := func(c corev1.Container, restart *corev1.ContainerRestartPolicy) func(*corev1.Pod) {
		c.RestartPolicy = restart
		return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, c) }
	}
	f("none", 0, podtest.Containers(podtest.Container("cpu", "4")))
	f("whole GPUs of two containers", 3, podtest.Containers(podtest.Container(podtest.GPUResource, "1"), podtest.Container(podtest.GPUResource, "2", "cpu", "1")))
	f("MIG instances and shared GPUs", 6, podtest.Containers(podtest.Container("nvidia.com/mig-1g.10gb", "2", "nvidia.com/mig-2g.20gb", "1", "nvidia.com/gpu.shared", "3")))
	f("another vendor's", 2, podtest.Containers(podtest.Container("amd.com/gpu", "2")))
	f("the operator's own name", 2, podtest.Containers(podtest.Container("example.com/gpu", "2", "example.com/nic", "9")))
	f("memory of a shared GPU is no device", 1, podtest.Containers(podtest.Container(podtest.GPUResource, "1", "nvidia.com/gpumem", "3000")))
	f("an init container that needs more", 4, podtest.Containers(podtest.Container(podtest.GPUResource, "1")), init(podtest.Container(podtest.GPUResource, "4"), nil))
	f("a sidecar", 3, podtest.Containers(podtest.Container(podtest.GPUResource, "1")), init(podtest.Container(podtest.GPUResource, "2"), &always))
	f("a negative number", 0, podtest.Containers(podtest.Container(podtest.GPUResource, "-5")))
	f("resource claims", 4, usesClaims("two", "one"))
	f("a generated claim", 3, podtest.GeneratedClaim("t", "two"))

	f("a claim that is not known", -1, usesClaims("two", "unknown"))
	f("a claim that is not allocated", -1, usesClaims("pending"))
	f("a claim that is not generated yet", -1, podtest.GeneratedClaim("t", ""))
	f("a claim that is not known, on a node that is", 8, usesClaims("unknown"), func(p *corev1.Pod) { p.Spec.NodeName = "node-8" })
	d.ResourceClaimChanged(podtest.ResourceClaim("two"), true)
	f("a claim that is gone", -1, usesClaims("two"))
	d.NodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-8"}}, true)
	f("a node that is gone", -1, usesClaims("unknown"), func(p *corev1.Pod) { p.Spec.NodeName = "node-8" })
}

func claimTemplate(name string, requests ...resourcev1.DeviceRequest) *resourcev1.ResourceClaimTemplate {
	t := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	t.Spec.Spec.Devices.Requests = requests
	return t
}

func exactly(class string, count int64) resourcev1.DeviceRequest {
	return resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class, Count: count}}
}

// A budget counts every device that a replica takes, of whatever kind.
func TestDevicesPerReplica(t *testing.T) {
	d := NewDevices(nil)
	d.TemplateChanged(claimTemplate("pair", exactly("gpu.nvidia.com", 2), exactly("compute-domain-default-channel.nvidia.com", 1)), false)
	d.TemplateChanged(claimTemplate("slice", exactly("mig.nvidia.com", 0)), false)
	d.TemplateChanged(claimTemplate("either", resourcev1.DeviceRequest{FirstAvailable: []resourcev1.DeviceSubRequest{
		{DeviceClassName: "gpu.nvidia.com", Count: 1}, {DeviceClassName: "mig.nvidia.com", Count: 4},
	}}), false)
	d.ResourceClaimChanged(podtest.ResourceClaim("all", "gpu.nvidia.com", "gpu.nvidia.com", "gpu.nvidia.com"), false)
	f := func(what string, want int32, template *corev1.Pod, pods ...*corev1.Pod) {
		t.Helper()
		var spec replica.Template
		if template != nil {
			spec.Pods = &template.Spec
		}
		if got := d.PerReplica("ns", &spec, &replica.Units{Pods: pods}); got != want {
			t.Errorf("%s: %d devices per replica, want %d", what, got, want)
		}
	}
	mig := podtest.Pod("a", "mig", at(0), podtest.Containers(podtest.Container("nvidia.com/mig-3g.40gb", "2")))
	f("MIG instances", 2, mig)
	f("shared GPUs", 1, podtest.Pod("a", "p", at(0), podtest.Containers(podtest.Container("nvidia.com/gpu.shared", "1"))))
	f("a claim template", 2, podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("pair", "")))
	f("a count that is not given", 1, podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("slice", "")))
	f("alternatives", 4, podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("either", "")))
	f("a template that is not known", 0, podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("unknown", "")))
	f("a template that is not known, with pods", 3, podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("unknown", "")), podtest.Pod("a", "p", at(0), podtest.Containers(), podtest.GeneratedClaim("unknown", "all")))
	f("no template", 2, nil, podtest.Pod("a", "p", at(0)), mig)
	f("an older template's pods", 1, podtest.Pod("a", "p", at(0)), mig)
	f("no pods", 0, nil)
	group := replica.Template{Pods: &podtest.Pod("a", "p", at(0), podtest.Containers(podtest.Container("nvidia.com/gpu", "2"))).Spec, Workers: &podtest.Pod("a", "p", at(0), podtest.Containers(podtest.Container("nvidia.com/gpu", "8"))).Spec, NumWorkers: 3}
	if n := d.PerReplica("ns", &group, &replica.Units{}); n != 26 {
		t.Errorf("%d devices of a leader with 2 and three workers with 8", n)
	}
	group.NumWorkers = math.MaxInt32
	if n := d.PerReplica("ns", &group, &replica.Units{}); n != maxResourceCount {
		t.Errorf("%d devices of as many workers as a number has", n)
	}
}
