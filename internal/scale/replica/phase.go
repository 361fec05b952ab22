// SPDX-License-Identifier: Apache-2.0

// Package replica reads a pod as a replica of a workload: its phase, and how long it
// took to start.
package replica

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Finished reports whether all of the pod's containers have terminated and will not
// restart. Such a pod is not a replica.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PhaseOf returns the pod's phase as a replica, and when the phase started.
//
// A starting pod's time is the latest of its creation, its scheduling and the last
// time at which it became unready: a pod that waited an hour for a node has not been
// loading its model for an hour.
func PhaseOf(pod *corev1.Pod) (scale.Phase, time.Time) {
	created := pod.CreationTimestamp.Time
	if pod.DeletionTimestamp != nil {
		return scale.Terminating, pod.DeletionTimestamp.Time
	}
	if c := Gate(pod); c != nil && c.Status == corev1.ConditionFalse && c.Reason == v1alpha1.ReasonDraining {
		return scale.Leaving, c.LastTransitionTime.Time
	}
	since := created
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		at := c.LastTransitionTime.Time
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			return scale.Serving, at
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && isUnschedulableReason(c.Reason):
			return scale.Unschedulable, at
		case c.Type == corev1.PodReady, c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			if at.After(since) {
				since = at
			}
		}
	}
	return scale.Starting, since
}

// isUnschedulableReason reports whether a pod with this reason of its PodScheduled
// condition does not count as starting capacity: no node fits it, or a scheduling
// gate holds it.
func isUnschedulableReason(reason string) bool {
	return reason == corev1.PodReasonUnschedulable || reason == corev1.PodReasonSchedulingGated
}

// ScheduledAt returns when the pod got its place on a node, if it has one.
func ScheduledAt(pod *corev1.Pod) (at time.Time, ok bool) {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return at, false
}

// Serving reports whether a pod serves, and so has metrics. A starting pod's GPUs are idle or load
// a model, and a terminating pod's load goes away.
func Serving(pod *corev1.Pod) bool {
	phase, _ := PhaseOf(pod)
	return phase == scale.Serving && !Finished(pod)
}

// IsNew reports whether the pod has probably never been ready. A pod that was ready
// before has a transition of its Ready condition long after its scheduling.
func IsNew(pod *corev1.Pod) bool {
	var scheduled, unready time.Time
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			scheduled = c.LastTransitionTime.Time
		case corev1.PodReady:
			unready = c.LastTransitionTime.Time
		}
	}
	// The kubelet reports the first status of a pod within seconds of its scheduling.
	return unready.IsZero() || scheduled.IsZero() || unready.Sub(scheduled) <= 10*time.Second
}
