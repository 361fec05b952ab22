// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Want is the range of replicas that the signals wanted around one moment.
type Want struct {
	At   time.Time `json:"at"`
	Low  int32     `json:"low"`
	High int32     `json:"high"`
}

// The bounds of the lists: 64 wants over a 5-minute window keep 4.7 s of
// resolution, and no rate policy needs finer changes than its period ÷ 256.
const (
	maxWants   = 64
	maxChanges = 256
)

// stabilize holds a change until the whole window agrees with it.
func (e *engine) stabilize(want int32, s *State) ruling {
	cur := e.o.Replicas
	switch {
	case want < cur:
		window := e.p.DownWindow()
		if e.promised && e.p.Down.Window < 0 {
			return ruling{}
		}
		if window <= 0 {
			return ruling{}
		}
		_, highest, _ := extremes(s.Wants, e.now, window)
		known := e.now.Sub(s.Since)
		switch { // the window is not covered yet, as after a restart
		case known < window && e.drained:
			highest = max(highest, min(e.serving, cur))
		case known < window:
			highest = cur
		}
		if want == 0 && highest <= 1 && e.p.Down.ToZero > 0 {
			return ruling{} // activate has waited
		}
		if held := min(cur, max(want, highest)); held != want {
			f := facts.Stabilization{Window: window, Down: true, Wait: max(time.Second, window-known)}
			if at := latestWant(s.Wants, e.now, window, held); !at.IsZero() {
				f.Ago = e.now.Sub(at)
				f.Wait = max(f.Wait, window-f.Ago)
			}
			return ruling{RuleStabilization, held, f}
		}
	case want > cur && e.p.Up.Window > 0:
		lowest, _, ok := extremes(s.Wants, e.now, e.p.Up.Window)
		if !ok {
			lowest = want // of missing data
		}
		if e.now.Sub(s.Since) < e.p.Up.Window {
			lowest = cur
		}
		if held := max(cur, min(want, lowest)); held != want {
			return ruling{RuleStabilization, held, facts.Stabilization{Window: e.p.Up.Window}}
		}
	}
	return ruling{}
}

// keepStarting removes no replica while others that were added are starting, because those
// already hold GPUs. Replicas that are replaced keep none, unless the workload's controller
// would remove others than those: then as many stay as serve what is needed. Replicas that a
// backlog asked for are not awaited once it is processed without them. During a rollout
// some are always starting: there, nothing is removed while fewer serve than are wanted.
func (e *engine) keepStarting(want int32) ruling {
	held, cur := min(e.serving+e.added, e.o.Replicas), e.o.Replicas
	pending := facts.Pending{Starting: e.added, Stuck: e.unschedulable + e.expired, Wait: e.wait}
	switch {
	case want >= cur:
		return ruling{}
	case e.rollout.InProgress && e.want > e.serving:
		pending.Starting = e.starting
		return ruling{RuleRollout, cur, facts.Rollout{Serving: e.serving, Pending: pending}}
	case !e.rollout.InProgress && e.added > 0 && held > want && !e.drained:
		return ruling{RuleStarting, held, facts.Starting{Pending: pending}}
	}
	if held = e.leastThatServe(want, min(e.needed, e.serving)); held > want {
		return ruling{RuleStarting, held, facts.Replaced{N: max(1, cur-e.serving), Of: cur}}
	}
	return ruling{}
}

// remember records what the load asks for, and never what a rule keeps: that would keep it
// for a window more, and for ever if the rule applies time and again. After a while in which
// the load was not known the window starts again.
func (e *engine) remember(s State) State {
	switch {
	case e.unknown && (s.UnknownSince.IsZero() || s.UnknownSince.After(e.now)):
		s.UnknownSince = e.now
	case !e.unknown:
		if e.isBlind(&s) {
			s.Since = e.now
		}
		s.UnknownSince = time.Time{}
	}
	if e.asked >= 0 {
		s.Wants = remember(s.Wants, Want{At: e.now, Low: e.asked, High: e.asked}, max(e.p.DownWindow(), e.p.Up.Window, e.p.missingAfter()))
	}
	return s
}

// isBlind reports whether the load has been unknown for so long that what was known counts no more.
func (e *engine) isBlind(s *State) bool {
	return !s.UnknownSince.IsZero() && e.now.Sub(s.UnknownSince) > e.p.missingAfter()
}

// remember returns wants with w, without those older than window. It never
// writes to wants.
func remember(wants []Want, w Want, window time.Duration) []Want {
	old := func(x Want) bool { return !isRecent(x.At, w.At, window) }
	for len(wants) > 0 && old(wants[0]) {
		wants = wants[1:]
	}
	if slices.ContainsFunc(wants, old) {
		wants = slices.DeleteFunc(slices.Clone(wants), old)
	}
	n := len(wants)
	if n > 0 && w.At.Sub(wants[n-1].At) < window/maxWants {
		last := wants[n-1]
		low, high := min(last.Low, w.Low), max(last.High, w.High)
		if low != last.Low || high != last.High {
			wants = slices.Clone(wants)
			wants[n-1].Low, wants[n-1].High = low, high
		}
		return wants
	}
	wants = wants[max(0, n-maxWants+1):]
	return slices.Concat(wants, []Want{w})
}

// extremes returns the lowest and highest want within window before now.
func extremes(wants []Want, now time.Time, window time.Duration) (lowest, highest int32, ok bool) {
	for _, w := range wants {
		if !isRecent(w.At, now, window) {
			continue
		}
		if !ok {
			lowest, highest, ok = w.Low, w.High, true
			continue
		}
		lowest, highest = min(lowest, w.Low), max(highest, w.High)
	}
	return lowest, highest, ok
}

// latestWant returns the last time within window before now at which n replicas or more were wanted; zero: none.
func latestWant(wants []Want, now time.Time, window time.Duration, n int32) time.Time {
	for _, w := range slices.Backward(wants) {
		if w.High >= n && isRecent(w.At, now, window) {
			return w.At
		}
	}
	return time.Time{}
}

// isRecent reports whether at lies within window before now. A time in the
// future is not recent: it would count until the clock reaches it.
func isRecent(at, now time.Time, window time.Duration) bool {
	age := now.Sub(at)
	return age >= 0 && age <= window
}
