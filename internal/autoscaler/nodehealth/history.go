// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The reasons of the condition beside those of faults. They are public.
const (
	reasonHealthy = "GPUsHealthy"
	reasonSilent  = "AgentSilent"

	reasonReleased = "GPUsReleased"
)

const (
	// downChecks is at how many checks in a row a GPU must be down to count as
	// lost: a single read may fail.
	downChecks = 2
	// silentChecks is the number of failed checks in a row after which the
	// condition is Unknown.
	silentChecks = 8
	// maxMessage bounds the condition's message, in bytes.
	maxMessage = 1024
)

// history holds the results of earlier checks of one agent.
type history struct {
	node   string
	down   map[string]int // by UUID: checks in a row at which the GPU was down or missing
	seen   map[string]bool
	silent int // failed checks in a row
}

// condition derives the node's condition from an agent's report, or from the error of
// the request. ok is false, and the node keeps its condition, until silentChecks requests
// in a row have failed.
func (h *history) condition(report *gpu.NodeHealth, err error, now time.Time) (cond corev1.NodeCondition, ok bool) {
	cond.Type = Condition
	if err != nil {
		if h.silent++; h.silent < silentChecks {
			return cond, false
		}
		cond.Status, cond.Reason = corev1.ConditionUnknown, reasonSilent
		cond.Message = "the agent of this node does not answer, so the health of its GPUs is unknown"
		return cond, true
	}
	h.silent = 0
	if report.Released {
		cond.Status, cond.Reason = corev1.ConditionUnknown, reasonReleased
		cond.Message = "the agent was asked to release the GPUs of this node, so their health is unknown"
		return cond, true
	}
	faults := h.withoutTransients(report).Faults(now)
	if len(faults) == 0 {
		cond.Status, cond.Reason, cond.Message = corev1.ConditionTrue, reasonHealthy, "no GPU of this node has a fault"
		return cond, true
	}
	messages := make([]string, 0, len(faults))
	for _, f := range faults {
		messages = append(messages, f.Message)
	}
	cond.Status, cond.Reason, cond.Message = corev1.ConditionFalse, faults[0].Reason, excerpt.Of(strings.Join(messages, "; "), maxMessage)
	return cond, true
}

// withoutTransients returns the report without transient faults: a device is down
// when it was down at several checks in a row. A GPU that an earlier report listed
// and this one does not is down as well.
func (h *history) withoutTransients(report *gpu.NodeHealth) *gpu.NodeHealth {
	out := &gpu.NodeHealth{BackendDown: report.BackendDown, GPUs: slices.Clone(report.GPUs)}
	listed := map[string]bool{}
	for _, g := range report.GPUs {
		listed[g.UUID] = true
		h.seen[g.UUID] = h.seen[g.UUID] || gpu.IsWhole(g.UUID) && !g.Down && !g.Unlisted
	}
	for uuid, whole := range h.seen {
		switch {
		case listed[uuid]:
		case whole:
			out.GPUs = append(out.GPUs, gpu.Health{UUID: uuid, Down: true})
		default:
			delete(h.seen, uuid) // MIG devices are created and destroyed
		}
	}
	slices.SortFunc(out.GPUs, func(x, y gpu.Health) int { return strings.Compare(x.UUID, y.UUID) })
	down := map[string]int{}
	for i := range out.GPUs {
		g := &out.GPUs[i]
		if g.Down {
			down[g.UUID] = h.down[g.UUID] + 1
			g.Down = down[g.UUID] >= downChecks
		}
	}
	const node = "" // the key of the node itself
	if report.BackendDown {
		down[node] = h.down[node] + 1
		out.BackendDown = down[node] >= downChecks
	}
	const missing = "missing" // likewise: the GPUs that were never listed
	if report.Counts.Missing() > 0 {
		down[missing] = h.down[missing] + 1
		if down[missing] >= downChecks {
			out.Counts = report.Counts
		}
	}
	h.down = down
	return out
}
