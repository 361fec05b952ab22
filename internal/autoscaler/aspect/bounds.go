// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/bounds"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// bounding sets the bounds in force: of schedules and an override.
type bounding struct {
	None
	fleet *Fleet
	bounds.Keeper
	said *bounds.Report // about the last decision
}

// Prepare implements Aspect.
func (b *bounding) Prepare(p *Pass) {
	b.said = b.Apply(p.Plan, &p.Policy, p.Object.Status.Override, p.At)
}

// Report implements Aspect.
func (b *bounding) Report(p *Pass) Part {
	said, out := b.said, Part{Owns: bounds.Names}
	if p.Decision == nil {
		out.Status = func(st, last *v1alpha1.GPUAutoscalerStatus) { st.Override = last.Override }
		return out
	}
	out.Conditions = bounds.Conditions(said, p.Decision, p.Signals, p.Object.Status.Conditions)
	out.Notices = b.Notices(said, p.Decision, p.Object, b.fleet.Leading())
	out.Status = func(st, _ *v1alpha1.GPUAutoscalerStatus) { st.Override, st.Bounds = said.Status(), said.Bounds() }
	out.View = func(v *view.Workload) {
		v.Override, v.Schedules = said.Line(), said.Schedules()
		v.Min, v.Max = said.Range()
	}
	return out
}
