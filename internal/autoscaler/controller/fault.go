// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// faultPause is the time from a fault of ours to the next pass of its workload.
const faultPause = 30 * time.Second

// guarded is pass. A panic costs this workload its decisions until the next pass, and nobody else anything.
func (w *workload) guarded(now time.Time) (pause time.Duration) {
	defer func() {
		if x := recover(); x != nil {
			pause = faultPause
			w.fault(now, x)
		}
	}()
	return min(idleFactor*w.pass(now), maxIdle)
}

// fault says that a pass did not end.
func (w *workload) fault(now time.Time, x any) {
	w.shared.meters.RecordFault()
	w.shared.deps.Log.Error("a pass failed: this is a fault of the controller; the replicas stay", "gpuautoscaler", w.key.String(), "panic", x, "stack", string(debug.Stack()))
	defer func() {
		if again := recover(); again != nil {
			w.shared.deps.Log.Error("the fault cannot be shown", "gpuautoscaler", w.key.String(), "panic", again)
		}
	}()
	w.engine.suspended = true
	message := fmt.Sprintf("a fault of the controller, whose log has more: %s. The replicas stay", excerpt.Of(fmt.Sprint(x), maxDetail))
	w.publish(&pass{Pass: aspect.Pass{Key: w.key, At: now, Object: w.object.Load()}, plan: w.plan.Load(), obstacle: verdict{reasonFault, message}})
}
