// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// The reasons of ConditionRollout.
const (
	reasonReplacing = "ReplacingPods"
	reasonNoRollout = "NoRollout"
)

// rolloutCondition returns ConditionRollout if a rollout is in progress, or was before. The
// message has no numbers, because each change of it is written; the Deployment has them.
func rolloutCondition(r *report, base []metav1.Condition) []metav1.Condition {
	d := r.decision
	if d == nil || !d.Rollout.InProgress && meta.FindStatusCondition(base, v1alpha1.ConditionRollout) == nil {
		return nil
	}
	c := metav1.Condition{
		Type: v1alpha1.ConditionRollout, Status: metav1.ConditionFalse, Reason: reasonNoRollout,
		Message: "the pods of the newest version have replaced the others",
	}
	switch ro := d.Rollout; {
	case ro.InProgress && d.Serving == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods are being replaced by those of another version, and none serves: the replicas stay as they are"
	case ro.InProgress && ro.Outdated == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods were replaced by those of another version, and not all of them serve yet"
	case ro.InProgress:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods of more than one version run: surge pods count neither as load nor as capacity"
	}
	return []metav1.Condition{c}
}
