// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// startup learns how long a replica takes to start, and says which pods cannot.
type startup struct {
	None
	replica.Startup
}

func (x *startup) Prepare(p *Pass) {
	x.Observe(p.Units.Pods)
	if l := x.Learned(); l != nil && p.Policy.Startup == 0 {
		p.Policy.Startup, p.Policy.TypicalStartup = time.Duration(l.P95Seconds)*time.Second, x.Typical()
	}
	p.Unbounded = p.Policy
}

func (x *startup) Forget(*Pass) { x.Startup = replica.Startup{} }

func (x *startup) Report(p *Pass) Part {
	p.Startup = x.Learned()
	learned, given, pending := p.Startup, p.Object.Spec.Startup, replica.Pending(p.Units.Pods, p.refused())
	return Part{
		Status: func(st, _ *v1alpha1.GPUAutoscalerStatus) { st.Startup, st.Pending = learned, pending },
		View: func(v *view.Workload) {
			if given != nil && given.ExpectedSeconds != nil {
				v.Startup = time.Duration(*given.ExpectedSeconds) * time.Second
			} else if learned != nil {
				v.Startup = time.Duration(learned.P50Seconds) * time.Second
			}
		},
	}
}

// refused says how many replicas lack their pod, and why; nil: none does.
func (p *Pass) refused() *v1alpha1.PendingStatus {
	if p.Target == nil || p.Target.Refused == nil || int(p.Target.Replicas) <= len(p.Units.Pods) {
		return nil
	}
	out := *p.Target.Refused
	out.Replicas = p.Target.Replicas - int32(len(p.Units.Pods))
	return &out
}
