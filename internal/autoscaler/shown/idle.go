// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// heldAfter is the time from a pod's place on a node within which an exporter usually says what it holds. A pod that got its
// place earlier held the GPU before: the exporter's list of owners had a gap.
const heldAfter = time.Minute

// setIdle sets since when a GPU is idle-held. The run of values without activity counts from the time at which the present
// owners got the GPU.
func setIdle(g *view.GPU, state view.State, run gpu.IdleRun, pods Pods) {
	since, atLeast, ok := run.Since()
	if state != view.Idle || !ok {
		return
	}
	if held := g.HeldSince; held.After(since) {
		since, atLeast = held, slices.ContainsFunc(g.Owners, func(o view.Owner) bool {
			at, ok := placedAt(pods, &o)
			return !ok || held.Sub(at) > heldAfter
		})
	}
	// Whole seconds, and none of the time before.
	g.IdleSince, g.IdleAtLeast = since.Add(time.Second-1).Truncate(time.Second).UTC(), atLeast
}

// placedAt returns when an owner got its place on a node.
func placedAt(pods Pods, o *view.Owner) (at time.Time, ok bool) {
	pod, ok := pods.Get(o.Namespace, o.Pod)
	if !ok {
		return at, false
	}
	return replica.ScheduledAt(pod)
}
