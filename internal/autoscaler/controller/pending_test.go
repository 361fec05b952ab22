// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestPending(t *testing.T) {
	unschedulable := condition(corev1.PodScheduled, corev1.ConditionFalse, corev1.PodReasonUnschedulable, at(1))
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
	got := pendingOf([]*corev1.Pod{
		pod("a", "serves", at(0), ready(at(1))),
		pod("a", "starts", at(0), waits("ContainerCreating", "")),
		pod("a", "x", at(0), unschedulable, why), pod("a", "y", at(0), unschedulable),
		pod("a", "z", at(0), waits("ImagePullBackOff", "no such image")),
	})
	want := []v1alpha1.PendingStatus{
		{Reason: "Unschedulable", Replicas: 2, Message: "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"},
		{Reason: "ImagePullBackOff", Replicas: 1, Message: "no such image"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
