// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Deletion says what becomes of the replicas when a is deleted.
func Deletion(a *v1alpha1.GPUAutoscaler) string {
	switch b := a.Status.ReplicasBefore; {
	case a.Spec.OnDelete != v1alpha1.OnDeleteRestore:
		return "the replicas stay (onDelete: Keep)"
	case b == nil:
		return "the replicas stay: those from before it are not recorded (onDelete: Restore)"
	default:
		return fmt.Sprintf("%s gets %d replicas again, as before it", b.Target, b.Replicas)
	}
}

// AllReadable is the message of ConditionSignals while every signal has a value of its own.
const AllReadable = "every signal can be read"

// IsNotable reports whether a condition of a GPUAutoscaler is not the usual one, for a
// list of what is to be looked at. Most conditions are usually True.
func IsNotable(c *metav1.Condition) bool {
	switch c.Type {
	case v1alpha1.ConditionOverridden:
		return c.Reason != v1alpha1.ReasonNoOverride
	case v1alpha1.ConditionDraining:
		return c.Status == metav1.ConditionTrue || c.Reason != v1alpha1.ReasonNotDraining
	case v1alpha1.ConditionRollout:
		return c.Status == metav1.ConditionTrue
	case v1alpha1.ConditionPaired:
		return c.Status != metav1.ConditionTrue
	case v1alpha1.ConditionIdle:
		return c.Status != metav1.ConditionFalse
	case v1alpha1.ConditionScalingLimited:
		return c.Status == metav1.ConditionTrue && c.Reason != v1alpha1.ReasonLimitedByOverride && c.Reason != v1alpha1.ReasonLimitedByIdle // their own conditions say it
	case v1alpha1.ConditionScalingActive:
		return c.Reason == v1alpha1.ReasonScalingDisabled // ConditionSignals says the rest
	case v1alpha1.ConditionSignals: // one signal may have no value, or be 0/0, while another one decides
		return c.Status != metav1.ConditionTrue || c.Message != AllReadable
	}
	return c.Status != metav1.ConditionTrue
}
