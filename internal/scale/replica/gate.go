// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Gated reports whether pods of this spec declare the readiness gate by which they can
// leave the endpoints while they run.
func Gated(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1alpha1.ReadinessGate })
}

// Gate returns the condition of a pod's readiness gate; nil: it does not declare the gate,
// or has no condition yet.
func Gate(pod *corev1.Pod) *corev1.PodCondition {
	if !Gated(&pod.Spec) {
		return nil
	}
	return condition(pod, v1alpha1.ReadinessGate)
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	at := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if at < 0 {
		return nil
	}
	return &pod.Status.Conditions[at]
}

// IsReady reports whether a pod's condition Ready is True, so that endpoints have it.
func IsReady(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

const statefulSet = "StatefulSet"

// Ordinal returns the number of a pod of a StatefulSet, such as the leader of a group of a
// LeaderWorkerSet. StatefulSets remove the highest one first.
func Ordinal(pod *corev1.Pod) (n int32, ok bool) {
	if !slices.ContainsFunc(pod.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == statefulSet && o.Controller != nil && *o.Controller
	}) {
		return 0, false
	}
	x, err := strconv.ParseInt(pod.Name[strings.LastIndexByte(pod.Name, '-')+1:], 10, 32)
	if err != nil || x < 0 {
		return 0, false
	}
	return int32(x), true
}
