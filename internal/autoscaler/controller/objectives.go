// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// restoreObjectives continues with the record in the object's status: once after a start,
// and whenever another replica has written it.
func (w *workload) restoreObjectives(a *v1alpha1.GPUAutoscaler) {
	m := a.Status.Memory
	if m == nil || m == w.merged || w.merged != nil && w.shared.deps.Leading() {
		return
	}
	w.merged = m
	w.objectives.Restore(m)
}

// reportObjectives reports how well objectives are kept, and records an Event when one
// cannot be kept or measured any more. Behind an obstacle nothing is observed, and what was
// observed before may be about another target or spec: it is kept, and not reported.
func (w *workload) reportObjectives(r *report) {
	r.record = w.objectives.Record(r.at)
	if r.blocked() {
		return
	}
	startup := r.plan.Policy.Startup
	if l := w.startup.Learned(); l != nil && startup == 0 {
		startup = time.Duration(l.P95Seconds) * time.Second
	}
	r.objectives = w.objectives.Reports(&r.plan.Compiled, &w.state, startup, r.at)
	for _, c := range objective.Conditions(r.objectives) {
		last, isFalse := w.unkept[c.Type], c.Status == metav1.ConditionFalse
		if w.unkept == nil {
			w.unkept = map[string]string{}
		}
		if w.unkept[c.Type] = ""; !isFalse {
			continue
		}
		w.unkept[c.Type] = c.Reason
		stored := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
		if last == c.Reason || !w.shared.deps.Leading() || stored != nil && stored.Reason == c.Reason {
			continue
		}
		w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", excerpt.Of(c.Message, maxMessage))
	}
}
