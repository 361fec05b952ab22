// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// The condition appears with the first rollout, and stays.
func TestRolloutCondition(t *testing.T) {
	was := []metav1.Condition{{Type: v1alpha1.ConditionRollout}}
	f := func(d *scale.Decision, base []metav1.Condition, want metav1.ConditionStatus, says string) {
		t.Helper()
		a := &v1alpha1.GPUAutoscaler{Status: v1alpha1.GPUAutoscalerStatus{Conditions: base}}
		got := rollout{}.Report(&Pass{Object: a, Decision: d}).Conditions
		if want == "" {
			if len(got) != 0 {
				t.Errorf("%+v, want none", got)
			}
			return
		}
		if len(got) != 1 || got[0].Status != want {
			t.Fatalf("%+v, want %s", got, want)
		}
		if !strings.Contains(got[0].Message, says) {
			t.Errorf("%q does not say %q", got[0].Message, says)
		}
	}
	f(nil, was, "", "")
	f(&scale.Decision{}, nil, "", "")
	f(&scale.Decision{}, was, metav1.ConditionFalse, "have replaced the others")
	f(&scale.Decision{Serving: 3, Rollout: scale.Rollout{InProgress: true, Updated: 1, Outdated: 2}}, nil, metav1.ConditionTrue, "more than one version")
	f(&scale.Decision{Serving: 1, Rollout: scale.Rollout{InProgress: true, Updated: 3}}, nil, metav1.ConditionTrue, "not all of them have served for 1 min")
	f(&scale.Decision{Serving: 1, Starting: 2, Rollout: scale.Rollout{InProgress: true, Updated: 3}}, nil, metav1.ConditionTrue, "not all of them serve yet")
	f(&scale.Decision{Rollout: scale.Rollout{InProgress: true}}, nil, metav1.ConditionTrue, "none serves")
}
