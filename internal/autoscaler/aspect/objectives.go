// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// objectives counts how well the slos of signals are kept, and has the engine learn what they cost.
type objectives struct {
	None
	fleet   *Fleet
	keeper  objective.Keeper
	learner objective.Learner
	merged  *v1alpha1.Memory  // whose record keeper has
	unkept  map[string]string // reasons of the conditions that are False, by type
}

// restore continues with the record in the object's status: once after a start,
// and whenever another replica has written it.
func (x *objectives) restore(p *Pass) {
	m := p.Object.Status.Memory
	if m == nil || m == x.merged || x.merged != nil && x.fleet.Leading() {
		return
	}
	x.merged = m
	x.keeper.Restore(m)
}

func (x *objectives) Prepare(p *Pass) { x.restore(p) }

func (x *objectives) Decided(_ context.Context, p *Pass) {
	x.keeper.Observe(p.Plan, p.Units.Pods, x.fleet.Store, p.At, p.Policy.MaxAge)
	p.State = x.learner.Learn(&p.Unbounded, p.State, objective.Recorded{
		Past: x.fleet.Past, Turn: &x.fleet.recalls, Tokens: p.Tokens,
		Workload: history.Workload{Namespace: p.Key.Namespace, Kind: history.KindAutoscaler, Name: p.Key.Name},
	}, p.At)
}

func (x *objectives) Forget(p *Pass) {
	x.restore(p)
	x.keeper.Forget()
	x.learner.Forget(p.At)
}

// Behind an obstacle nothing is observed, and what was observed before may be about another target
// or spec: it is kept, and not reported.
func (x *objectives) Report(p *Pass) Part {
	x.restore(p)
	record := x.keeper.Record(p.At)
	var reports []objective.Report
	if !p.Blocked {
		startup := p.Plan.Policy.Startup
		if p.Startup != nil && startup == 0 {
			startup = time.Duration(p.Startup.P95Seconds) * time.Second
		}
		reports = x.keeper.Reports(p.Plan, &p.State, startup, p.At)
	}
	out := Part{
		Unasked: len(reports) == 0, Owns: []string{v1alpha1.ConditionAttainable, v1alpha1.ConditionMeasured},
		Conditions: objective.Conditions(reports),
		Status: func(st, _ *v1alpha1.GPUAutoscalerStatus) {
			if st.Objectives = objective.Status(reports); st.Memory != nil {
				st.Memory.Requests = record
			}
		},
		View:    func(v *view.Workload) { v.Objectives = objective.View(reports) },
		Metrics: func(m *meters.Workload) { m.Objectives = reports },
	}
	for i := range out.Conditions {
		if c := &out.Conditions[i]; x.isDue(c, p.Object) {
			out.Notices = append(out.Notices, Notice{Kind: corev1.EventTypeWarning, Reason: c.Reason, Action: "Observe", Note: excerpt.Of(c.Message, maxMessage)})
		}
	}
	return out
}

// isDue reports whether an Event about a condition is due: an objective cannot be kept or measured any more.
func (x *objectives) isDue(c *metav1.Condition, a *v1alpha1.GPUAutoscaler) bool {
	if x.unkept == nil {
		x.unkept = map[string]string{}
	}
	last := x.unkept[c.Type]
	if x.unkept[c.Type] = ""; c.Status != metav1.ConditionFalse {
		return false
	}
	x.unkept[c.Type] = c.Reason
	stored := meta.FindStatusCondition(a.Status.Conditions, c.Type)
	return last != c.Reason && x.fleet.Leading() && (stored == nil || stored.Reason != c.Reason)
}
