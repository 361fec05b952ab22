// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

func somePod(namespace, name string, set map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set}}
}

func TestSlimPod(t *testing.T) {
	gpus := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("2")}
	limits := gpus.DeepCopy()
	limits["cpu"] = resource.MustParse("1")
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: time.Unix(9, 0)}}
	hosts := []corev1.HostIP{{IP: "1.2.3.1"}, {IP: "fd00::1"}}
	full := somePod("a", "b", map[string]string{"app": "x"})
	full.Annotations = map[string]string{"big": strings.Repeat("x", 1000), PodDeletionCost: "5", replica.SizeAnnotation: "4"}
	full.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}}
	full.Spec.NodeName, full.Spec.HostNetwork = "n", true
	full.Spec.Containers = []corev1.Container{{
		Name: "c", Image: "i", Env: []corev1.EnvVar{{Name: "E"}}, Ports: []corev1.ContainerPort{{ContainerPort: 1}},
		Resources: corev1.ResourceRequirements{Limits: limits},
	}, {Name: "claims", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu", Request: "r"}, {Name: "nic"}}}}, {Name: "neither"}}
	full.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", HostIP: "1.2.3.1", HostIPs: hosts, Message: "m", Conditions: []corev1.PodCondition{ready, {Type: "Other"}}}
	always := corev1.ContainerRestartPolicyAlways
	full.Spec.InitContainers = []corev1.Container{
		{Name: "sidecar", Image: "i", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Limits: limits}},
		{Name: "prepare", Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: 2}}},
		{Name: "proxy", Image: "i", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 3}}},
	}
	full.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	full.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
	got := slimPod(full, nil)
	want := somePod("a", "b", map[string]string{"app": "x"})
	want.Annotations = map[string]string{PodDeletionCost: "5", replica.SizeAnnotation: "4"}
	want.Spec.NodeName, want.Spec.HostNetwork = "n", true
	want.Spec.Containers = []corev1.Container{{
		Name: "c", Ports: []corev1.ContainerPort{{ContainerPort: 1}}, Resources: corev1.ResourceRequirements{Limits: gpus},
	}, {Name: "claims", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{}}}}}
	want.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "1.2.3.4", HostIP: "1.2.3.1", HostIPs: hosts, Conditions: []corev1.PodCondition{ready}}
	want.Spec.InitContainers = []corev1.Container{
		{Name: "sidecar", RestartPolicy: &always, Resources: corev1.ResourceRequirements{Limits: gpus}},
		{Name: "proxy", RestartPolicy: &always, Ports: []corev1.ContainerPort{{ContainerPort: 3}}},
	}
	want.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}}
	want.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What the scheduler and the kubelet say about a pod that does not start is
// kept, in bounded length, and nothing of the kind of a pod that serves.
func TestSlimPodKeepsPendingReasons(t *testing.T) {
	slimmed := func(change func(*corev1.PodStatus)) *corev1.PodStatus {
		t.Helper()
		p := somePod("a", "b", nil)
		change(&p.Status)
		return &slimPod(p, nil).Status
	}
	waits := func(reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "c", Image: "i", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	long := strings.Repeat("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. ", 100)

	s := slimmed(func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: long},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: long, Message: long},
		}
	})
	if m := s.Conditions[0].Message; len(m) > maxPodMessage || !strings.HasPrefix(m, long[:200]) {
		t.Errorf("the scheduler's message is %d bytes: %q", len(m), m)
	}
	if c := s.Conditions[1]; c.Message != "" || len(c.Reason) > maxPodReason {
		t.Errorf("kept of readiness: %+v", c)
	}
	s = slimmed(func(s *corev1.PodStatus) {
		s.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Message: long}}
		s.InitContainerStatuses = []corev1.ContainerStatus{{Name: "done"}}
		s.ContainerStatuses = []corev1.ContainerStatus{waits("PodInitializing", ""), waits("ImagePullBackOff", long), waits("CrashLoopBackOff", "m")}
	})
	if s.Conditions[0].Message != "" || s.InitContainerStatuses != nil || len(s.ContainerStatuses) != 1 {
		t.Fatalf("kept: %+v", s)
	}
	if w := s.ContainerStatuses[0].State.Waiting; w.Reason != "ImagePullBackOff" || len(w.Message) > maxPodMessage || !strings.HasPrefix(w.Message, long[:200]) {
		t.Errorf("kept of the kubelet's words: %+v", w)
	}
	s = slimmed(func(s *corev1.PodStatus) {
		s.InitContainerStatuses = []corev1.ContainerStatus{waits("CrashLoopBackOff", "init")}
		s.ContainerStatuses = []corev1.ContainerStatus{waits("PodInitializing", "")}
	})
	if len(s.InitContainerStatuses) != 1 || s.InitContainerStatuses[0].State.Waiting.Message != "init" {
		t.Errorf("kept of an init container: %+v", s)
	}
	s = slimmed(func(s *corev1.PodStatus) {
		s.ContainerStatuses = []corev1.ContainerStatus{waits("ContainerCreating", long)}
	})
	if s.ContainerStatuses != nil {
		t.Errorf("kept of a container that starts: %+v", s.ContainerStatuses)
	}
}

// podBytes is what one pod takes of the heap once it is slim.
func podBytes(tb testing.TB, held bool) int {
	tb.Helper()
	const n = 2000
	long := strings.Repeat("0/3 nodes are available: 3 Insufficient nvidia.com/gpu. ", 100)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	pods := make([]any, 0, n)
	before := heap()
	for i := range n {
		p := somePod("namespace-of-a-team", strings.Clone(fmt.Sprintf("server-5d4f8c7b9-%05d", i)), map[string]string{"app": "server", "pod-template-hash": "5d4f8c7b9"})
		p.UID = types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i))
		p.Spec.Containers = []corev1.Container{{
			Name: "server", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8000}},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}},
		}}
		p.Status.Conditions = []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue},
		}
		if held {
			p.Status.Conditions[0] = corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: strings.Clone(long)}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: strings.Clone(long)},
			}}}
		}
		pods = append(pods, slimPod(p, nil))
	}
	size := int(heap()-before) / n
	runtime.KeepAlive(pods)
	return size
}

// A cluster's pods are what the controller holds most of: a pod that serves
// takes 3.5 KiB at most, and one that is held up 1.5 KiB more, whatever is said about it.
func TestSlimPodSize(t *testing.T) {
	serves, held := podBytes(t, false), podBytes(t, true)
	t.Logf("%d bytes of a pod that serves, %d of one that is held up", serves, held)
	if serves > 3584 {
		t.Errorf("a pod that serves takes %d bytes, want at most %d", serves, 3584)
	}
	if more := held - serves; more > 1536 {
		t.Errorf("what holds a pod up takes %d bytes, want at most 1536", more)
	}
}
