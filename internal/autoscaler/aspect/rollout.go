// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The reasons of ConditionRollout.
const (
	reasonReplacing = "ReplacingPods"
	reasonNoRollout = "NoRollout"
)

// rollout says that pods of another version replace the pods.
type rollout struct{ None }

func (rollout) Report(p *Pass) Part {
	out, d := Part{Owns: []string{v1alpha1.ConditionRollout}}, p.Decision
	if d == nil {
		return out
	}
	out.View = func(v *view.Workload) { v.Rollout = d.Rollout.InProgress }
	if d.Rollout.InProgress || meta.FindStatusCondition(p.Object.Status.Conditions, v1alpha1.ConditionRollout) != nil {
		out.Conditions = []metav1.Condition{rolloutCondition(d)}
	}
	return out
}

// rolloutCondition returns ConditionRollout. The message has no numbers, because each change of it is written; the
// Deployment has them.
func rolloutCondition(d *scale.Decision) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionRollout, Status: metav1.ConditionFalse, Reason: reasonNoRollout,
		Message: "the pods of the newest version have replaced the others",
	}
	switch ro := d.Rollout; {
	case ro.InProgress && d.Serving == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods are being replaced by those of another version, and none serves: the replicas stay as they are until one does"
	case ro.InProgress && ro.Outdated == 0 && d.Starting == 0 && d.Serving >= d.Current:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods were replaced by those of another version, and not all of them have served for 1 min yet: until then surge pods count neither as load nor as capacity"
	case ro.InProgress && ro.Outdated == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods were replaced by those of another version, and not all of them serve yet: no replica is removed while fewer serve than are needed"
	case ro.InProgress:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonReplacing, "pods of more than one version run: surge pods count neither as load nor as capacity, and no replica is removed while fewer serve than are needed"
	}
	return c
}
