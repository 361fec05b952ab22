// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/podtest"
)

func TestPending(t *testing.T) {
	unschedulable := podtest.Condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(1))
	waits := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message},
			}}}
		}
	}
	why := func(p *corev1.Pod) {
		p.Status.Conditions[0].Message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
	}
	got := Pending([]*corev1.Pod{
		podtest.Pod("a", "serves", at(0), podtest.Ready(at(1))),
		podtest.Pod("a", "starts", at(0), waits("ContainerCreating", "")),
		podtest.Pod("a", "x", at(0), unschedulable, why), podtest.Pod("a", "y", at(0), unschedulable),
		podtest.Pod("a", "z", at(0), waits("ImagePullBackOff", "no such image")),
	}, &v1alpha1.PendingStatus{Reason: "FailedCreate", Replicas: 3, Message: `pods "z-" is forbidden: exceeded quota: gpus`})
	want := []v1alpha1.PendingStatus{
		{Reason: "FailedCreate", Replicas: 3, Message: `pods "z-" is forbidden: exceeded quota: gpus`},
		{Reason: "Unschedulable", Replicas: 2, Message: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"},
		{Reason: "ImagePullBackOff", Replicas: 1, Message: "no such image"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
