// SPDX-License-Identifier: Apache-2.0

package drain

import "time"

// phase is what was asked of a pod last.
type phase uint8

const (
	anyPhase phase = iota
	unasked        // nothing that counts
	leaving        // to finish its requests
	recalled       // to serve again
	removed        // its removal, after it had left
	dropped        // its removal with its requests
)

func (e *Entry) phase() phase {
	switch isRemoved := !e.RemovedAt.IsZero(); {
	case e.Leaving && isRemoved:
		return removed
	case isRemoved:
		return dropped
	case e.Leaving:
		return leaving
	case e.Name != "":
		return recalled
	}
	return unasked
}

// transition is a row of the table: a pod in the phase from, for which when holds, is in the
// phase to, and counts as a role.
type transition struct {
	from phase
	when func(p *Plan, pod *Pod, e *Entry) bool
	to   phase
	as   Role
}

// transitions are tried in this order. What the cluster has had the time to show (reported)
// counts instead of what was asked for.
var transitions = []transition{
	{removed, func(p *Plan, _ *Pod, e *Entry) bool { return p.isRecent(e.RemovedAt) && p.w.Replicas <= e.RemovedTo }, removed, Gone},
	{dropped, func(p *Plan, _ *Pod, e *Entry) bool { return p.isRecent(e.RemovedAt) }, dropped, Counted},
	{recalled, func(p *Plan, pod *Pod, e *Entry) bool { return p.isRecent(e.Asked) && (pod.Leaving || !pod.Serving) }, recalled, Returning},
	{recalled, func(p *Plan, _ *Pod, e *Entry) bool { return p.isRecent(e.Asked) }, recalled, Counted},
	{anyPhase, func(_ *Plan, pod *Pod, _ *Entry) bool { return pod.Leaving }, leaving, Leaving},
	{leaving, func(_ *Plan, pod *Pod, _ *Entry) bool { return pod.Gated }, leaving, Leaving},
	{anyPhase, func(*Plan, *Pod, *Entry) bool { return true }, unasked, Counted},
}

// isRecent reports whether the cluster may not show yet what was asked for at a time.
func (p *Plan) isRecent(at time.Time) bool {
	return !at.IsZero() && !at.After(p.now) && p.now.Sub(at) < reported
}
