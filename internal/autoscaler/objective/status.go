// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"math"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Status returns the reports in the form of a status.
func Status(reports []Report) (out []v1alpha1.ObjectiveStatus) {
	for i := range reports {
		r := &reports[i]
		s := v1alpha1.ObjectiveStatus{Signal: r.Signal, Objective: percent(r.Objective), Over: period(r.Over), Message: r.Sentence()}
		if !r.Since.IsZero() {
			s.Since = &metav1.Time{Time: r.Since}
		}
		if r.Ended > 0 {
			s.Requests, s.Missed = int64(math.Round(r.Ended)), int64(math.Round(r.Missed))
			s.Attained, s.BudgetLeft = attainedLeast(r.Attained), budgetLeft(r.BudgetLeft)
			if r.isRange() {
				s.MissedAtMost = int64(math.Round(r.MissedMost))
				s.AttainedAtMost, s.BudgetLeftAtMost = attainedMost(r.AttainedMost), budgetLeft(r.BudgetLeftMost)
			}
		}
		for k := range r.Burns {
			if b := &r.Burns[k]; b.Requests > 0 {
				s.BurnRates = append(s.BurnRates, v1alpha1.BurnRateStatus{Window: budget.Windows[k].Name, Rate: number(b.Rate)})
			}
		}
		if r.Plan.Target > 0 {
			s.Plan = planStatus(r)
		}
		out = append(out, s)
	}
	return out
}

func planStatus(r *Report) *v1alpha1.PlanStatus {
	p := &v1alpha1.PlanStatus{
		Replicas:        number(r.Plan.Replicas),
		LooserObjective: percent(r.looser()), LooserReplicas: number(r.Plan.Looser),
		StricterObjective: percent(r.stricter()), StricterReplicas: number(r.Plan.Stricter),
	}
	if r.Plan.Short && r.Plan.Needs > 0 {
		p.NeededReplicas = number(r.Plan.Needs)
	}
	return p
}

// View returns the reports as the page shows them.
func View(reports []Report) (out []view.Objective) {
	conditions := Conditions(reports)
	for i := range reports {
		r := &reports[i]
		x := view.Objective{Signal: r.Signal, Objective: percent(r.Objective), Over: period(r.Over), Sentence: r.Sentence()}
		if r.Ended > 0 {
			x.Attained, x.BudgetLeft = r.attained(), r.left()
			x.Missed = r.AttainedMost < r.Objective
		}
		for k, b := range r.Burns {
			if w := budget.Windows[k]; b.Requests > 0 && (k == budget.Fast.Long || k == budget.Slow.Long || k == budget.Slower.Long) {
				x.Burns = append(x.Burns, view.Burn{Window: w.Name, Rate: b.Rate})
			}
		}
		x.Burning = budget.Fast.Fires(&r.Report) || budget.Slow.Fires(&r.Report)
		if r.Plan.Target > 0 {
			x.Cost = number(r.Plan.Replicas)
		}
		if i == 0 {
			for _, c := range conditions {
				if c.Status == metav1.ConditionFalse {
					x.Problems = append(x.Problems, c.Message)
				}
			}
		}
		out = append(out, x)
	}
	return out
}
