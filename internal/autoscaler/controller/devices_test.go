// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/podtest"
)

// resourceClaim has been allocated a device of each driver.
func resourceClaim(name string, drivers ...string) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for _, driver := range drivers {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{Driver: driver})
	}
	return c
}

// claims has a pod use resource claims: generated from a template where the
// name is written TEMPLATE=CLAIM.
func usesClaims(names ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, name := range names {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "r-" + name, ResourceClaimName: &name})
		}
	}
}

func generatedClaim(template, claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "r", ResourceClaimTemplateName: &template})
		if claim != "" {
			p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: "r", ResourceClaimName: &claim})
		}
	}
}

func TestDevicesOfAPod(t *testing.T) {
	d := newDevices([]string{"example.com/gpu"})
	d.claimChanged(resourceClaim("two", "gpu.nvidia.com", "gpu.nvidia.com"), false)
	d.claimChanged(resourceClaim("one", "gpu.nvidia.com", "compute-domain.nvidia.com", "nic.example.com"), false)
	d.claimChanged(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pending"}}, false)
	d.nodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-8"}, Status: corev1.NodeStatus{
		Capacity:    requests(podtest.GPUResource, "8", "cpu", "64").Resources.Limits,
		Allocatable: requests(podtest.GPUResource, "7", "cpu", "60").Resources.Limits,
	}}, false)
	f := func(what string, want int, change ...func(*corev1.Pod)) {
		t.Helper()
		if got := d.maxDevices(pod("a", "p", at(0), change...)); got != want {
			t.Errorf("%s: %d devices, want %d", what, got, want)
		}
	}
	always := corev1.ContainerRestartPolicyAlways
	init := func(c corev1.Container, restart *corev1.ContainerRestartPolicy) func(*corev1.Pod) {
		c.RestartPolicy = restart
		return func(p *corev1.Pod) { p.Spec.InitContainers = append(p.Spec.InitContainers, c) }
	}
	f("none", 0, containers(requests("cpu", "4")))
	f("whole GPUs of two containers", 3, containers(requests(podtest.GPUResource, "1"), requests(podtest.GPUResource, "2", "cpu", "1")))
	f("MIG instances and shared GPUs", 6, containers(requests("nvidia.com/mig-1g.10gb", "2", "nvidia.com/mig-2g.20gb", "1", "nvidia.com/gpu.shared", "3")))
	f("another vendor's", 2, containers(requests("amd.com/gpu", "2")))
	f("the operator's own name", 2, containers(requests("example.com/gpu", "2", "example.com/nic", "9")))
	f("memory of a shared GPU is no device", 1, containers(requests(podtest.GPUResource, "1", "nvidia.com/gpumem", "3000")))
	f("an init container that needs more", 4, containers(requests(podtest.GPUResource, "1")), init(requests(podtest.GPUResource, "4"), nil))
	f("a sidecar", 3, containers(requests(podtest.GPUResource, "1")), init(requests(podtest.GPUResource, "2"), &always))
	f("a negative number", 0, containers(requests(podtest.GPUResource, "-5")))
	f("resource claims", 4, usesClaims("two", "one"))
	f("a generated claim", 3, generatedClaim("t", "two"))

	f("a claim that is not known", -1, usesClaims("two", "unknown"))
	f("a claim that is not allocated", -1, usesClaims("pending"))
	f("a claim that is not generated yet", -1, generatedClaim("t", ""))
	f("a claim that is not known, on a node that is", 8, usesClaims("unknown"), func(p *corev1.Pod) { p.Spec.NodeName = "node-8" })
	d.claimChanged(resourceClaim("two"), true)
	f("a claim that is gone", -1, usesClaims("two"))
	d.nodeChanged(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-8"}}, true)
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
	d := newDevices(nil)
	d.templateChanged(claimTemplate("pair", exactly("gpu.nvidia.com", 2), exactly("compute-domain-default-channel.nvidia.com", 1)), false)
	d.templateChanged(claimTemplate("slice", exactly("mig.nvidia.com", 0)), false)
	d.templateChanged(claimTemplate("either", resourcev1.DeviceRequest{FirstAvailable: []resourcev1.DeviceSubRequest{
		{DeviceClassName: "gpu.nvidia.com", Count: 1}, {DeviceClassName: "mig.nvidia.com", Count: 4},
	}}), false)
	d.claimChanged(resourceClaim("all", "gpu.nvidia.com", "gpu.nvidia.com", "gpu.nvidia.com"), false)
	f := func(what string, want int32, template *corev1.Pod, pods ...*corev1.Pod) {
		t.Helper()
		tg := &target{claim: newClaim("apps", "Deployment", "ns", "a")}
		if template != nil {
			tg.pods = &template.Spec
		}
		if got := d.perReplica(tg, pods); got != want {
			t.Errorf("%s: %d devices per replica, want %d", what, got, want)
		}
	}
	mig := pod("a", "mig", at(0), containers(requests("nvidia.com/mig-3g.40gb", "2")))
	f("MIG instances", 2, mig)
	f("shared GPUs", 1, pod("a", "p", at(0), containers(requests("nvidia.com/gpu.shared", "1"))))
	f("a claim template", 2, pod("a", "p", at(0), containers(), generatedClaim("pair", "")))
	f("a count that is not given", 1, pod("a", "p", at(0), containers(), generatedClaim("slice", "")))
	f("alternatives", 4, pod("a", "p", at(0), containers(), generatedClaim("either", "")))
	f("a template that is not known", 0, pod("a", "p", at(0), containers(), generatedClaim("unknown", "")))
	f("a template that is not known, with pods", 3, pod("a", "p", at(0), containers(), generatedClaim("unknown", "")), pod("a", "p", at(0), containers(), generatedClaim("unknown", "all")))
	f("no template", 2, nil, pod("a", "p", at(0)), mig)
	f("an older template's pods", 1, pod("a", "p", at(0)), mig)
	f("no pods", 0, nil)
}

func TestBudgetCountsMIGInstances(t *testing.T) {
	a := autoscaler("web")
	eight := int32(8)
	a.Spec.Budget = &v1alpha1.Budget{MaxGPUs: &eight}
	d := deployment("web", 3)
	d.Spec.Template.Spec.Containers = []corev1.Container{requests("nvidia.com/mig-1g.10gb", "2")}
	r := newRig(t, d, a)
	since := r.now.Add(-time.Hour)
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		r.pods.Pods = append(r.pods.Pods, pod("web", name, since, ready(since), containers(requests("nvidia.com/mig-1g.10gb", "2"))))
	}
	w := r.add(a)
	r.utilization(r.now, 95, r.pods.Pods...) // of 60 %: 5 replicas
	w.pass(r.now)
	if got := r.replicas("web"); got != 4 {
		t.Errorf("%d replicas of 2 MIG instances with a budget of 8, want 4", got)
	}
	if d := w.status.next.decision; d.Rule != scale.RuleBudget {
		t.Errorf("decided by %s: %s", d.Rule, d.Sentence())
	}
}
