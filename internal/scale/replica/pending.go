// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	maxPending        = 3   // reasons in a status
	maxPendingMessage = 200 // bytes
)

// Pending returns the reasons that keep pods from serving, the one with the most
// pods first: those of pods, and of those that cannot be created; nil: all can.
func Pending(pods []*corev1.Pod, refused *v1alpha1.PendingStatus) []v1alpha1.PendingStatus {
	byReason := map[string]*v1alpha1.PendingStatus{}
	if refused != nil {
		refused.Message = excerpt.Of(refused.Message, maxPendingMessage)
		byReason[refused.Reason] = refused
	}
	for _, pod := range pods {
		reason, message := pendingReason(pod)
		if reason == "" {
			continue
		}
		if byReason[reason] == nil {
			byReason[reason] = &v1alpha1.PendingStatus{Reason: reason, Message: excerpt.Of(message, maxPendingMessage)}
		}
		byReason[reason].Replicas++
	}
	out := make([]v1alpha1.PendingStatus, 0, len(byReason))
	for _, p := range byReason {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b v1alpha1.PendingStatus) int {
		return cmp.Or(cmp.Compare(b.Replicas, a.Replicas), cmp.Compare(a.Reason, b.Reason))
	})
	return slices.Clip(out[:min(len(out), maxPending)])
}

// pendingReason returns the reason that keeps a pod from starting; empty if the start
// proceeds normally.
func pendingReason(pod *corev1.Pod) (reason, message string) {
	phase, _ := PhaseOf(pod)
	if Finished(pod) || phase == scale.Serving || phase == scale.Terminating {
		return "", ""
	}
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason != "" {
			return c.Reason, c.Message
		}
	}
	all := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for i := range all {
		w := all[i].State.Waiting
		if w != nil && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			return w.Reason, w.Message
		}
	}
	return "", ""
}
