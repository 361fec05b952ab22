// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestNotable(t *testing.T) {
	f := func(want bool, kind string, status metav1.ConditionStatus, reason string) {
		t.Helper()
		if got := IsNotable(&metav1.Condition{Type: kind, Status: status, Reason: reason}); got != want {
			t.Errorf("%s %s %s: %v", kind, status, reason, got)
		}
	}
	f(false, v1alpha1.ConditionReady, "True", "")
	f(true, v1alpha1.ConditionReady, "False", "")
	f(true, v1alpha1.ConditionOverridden, "True", "Overridden")
	f(true, v1alpha1.ConditionOverridden, "False", "OverrideEnded")
	f(false, v1alpha1.ConditionOverridden, "False", v1alpha1.ReasonNoOverride)
	f(false, v1alpha1.ConditionScalingLimited, "False", "DesiredWithinRange")
	f(true, v1alpha1.ConditionScalingLimited, "True", "TooManyReplicas")
	f(true, v1alpha1.ConditionDraining, "True", "Draining")
	f(true, v1alpha1.ConditionDraining, "False", "NoReadinessGate")
	f(false, v1alpha1.ConditionDraining, "False", "NotDraining")
	f(true, v1alpha1.ConditionRollout, "True", "RolloutInProgress")
	f(false, v1alpha1.ConditionRollout, "False", "NoRollout")
	f(true, v1alpha1.ConditionPaired, "False", v1alpha1.ReasonPairNotFound)
	f(false, v1alpha1.ConditionPaired, "True", "Paired")
	f(true, v1alpha1.ConditionIdle, "True", v1alpha1.ReasonIdleSoon)
	f(false, v1alpha1.ConditionIdle, "False", "InUse")
	f(false, v1alpha1.ConditionScalingActive, "False", "NoFreshData")
	f(true, v1alpha1.ConditionScalingActive, "False", v1alpha1.ReasonScalingDisabled)
}
