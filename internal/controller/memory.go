// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// maxMemory bounds what a status keeps of the engine's state.
	maxMemory = 3 << 10 // bytes of JSON
	// maxRecalled bounds what is taken from a status that others may have written.
	maxRecalled = 4 * maxMemory
	// maxKept is how many wants, and how many changes, are kept at most.
	maxKept = 24
	// freshMemory is how old a memory may be to be taken up where it ended: two
	// writes of a status that nothing else changes. Whoever reads an older one
	// has not watched for too long to vouch for a stabilisation window.
	freshMemory = 2 * statusMax
)

// memoryOf is the state as a status keeps it; nil if there is nothing to keep,
// or if it cannot be made small enough.
func memoryOf(s *scale.State, now time.Time) *v1alpha1.Memory {
	if s.Since.IsZero() && s.DecidedAt.IsZero() {
		return nil
	}
	if !s.DecidedAt.IsZero() && s.DecidedAt.Before(now) {
		now = s.DecidedAt // the signals were not read since
	}
	small := s.Truncate(time.Millisecond)
	small.Wants = salient(small.Wants)
	small.Changes = small.Changes[max(0, len(small.Changes)-maxKept):]
	each := func(drop func(*scale.SignalState)) func() {
		return func() {
			for i := range small.Signals {
				drop(&small.Signals[i])
			}
		}
	}
	for _, drop := range []func(){
		func() {},
		each(func(x *scale.SignalState) { x.Trend = scale.Trend{} }), // forecasts are needed least
		each(func(x *scale.SignalState) { x.Level = scale.Level{} }), // averages over seconds
		each(func(x *scale.SignalState) { x.Arrivals = scale.ArrivalModel{} }),
		each(func(x *scale.SignalState) { x.TokenLatency, x.FirstTokenLatency = scale.Curve{}, scale.Curve{} }),
		func() { small.Signals = nil },
		func() { small.Changes = nil },
	} {
		drop()
		b, err := json.Marshal(small)
		if err != nil {
			return nil
		}
		if len(b) <= maxMemory {
			return &v1alpha1.Memory{Time: metav1.NewMicroTime(now), State: runtime.RawExtension{Raw: b}}
		}
	}
	return nil
}

// salient are those of the wants, oldest first, that are the highest or the
// lowest of all that came after them: whatever window is looked at, its
// extremes are among them.
func salient(wants []scale.Want) []scale.Want {
	var kept []scale.Want // newest first
	for i := len(wants) - 1; i >= 0; i-- {
		w := wants[i]
		if n := len(kept); n > 0 {
			low, high := kept[n-1].Low, kept[n-1].High
			if w.Low >= low && w.High <= high {
				continue
			}
			// What is kept says the extremes of all that is newer, too.
			w.Low, w.High = min(w.Low, low), max(w.High, high)
		}
		kept = append(kept, w)
	}
	for len(kept) > maxKept {
		kept = halve(kept)
	}
	out := make([]scale.Want, 0, len(kept))
	for i := len(kept) - 1; i >= 0; i-- {
		out = append(out, kept[i])
	}
	return out
}

// halve joins each want with its neighbour, under the newer's time: it holds
// for a little longer than it would have, never for less.
func halve(newestFirst []scale.Want) []scale.Want {
	out := newestFirst[:0]
	for i := 0; i < len(newestFirst); i += 2 {
		w := newestFirst[i]
		if i+1 < len(newestFirst) {
			older := newestFirst[i+1]
			w.Low, w.High = min(w.Low, older.Low), max(w.High, older.High)
		}
		out = append(out, w)
	}
	return out
}

// recall is the state that a status kept, in today's form or in the one before
// it. With a state that is too old, or from the future, the stabilisation window
// has to be covered again before anything is scaled down. One that cannot be
// read is ignored.
func recall(m *v1alpha1.Memory, now time.Time) scale.State {
	var s scale.State
	if m == nil || len(m.State.Raw) > maxRecalled || json.Unmarshal(m.State.Raw, &s) != nil {
		return scale.State{}
	}
	if s.Signals == nil {
		s.Signals = recallLists(m.State.Raw)
	}
	return resumed(s, now.Sub(m.Time.Time))
}

// resumed is the state of a workload about which nothing was decided for gap.
// After a long gap, or a negative one, the stabilisation window has to be covered
// again before anything goes down; what was learned is kept.
func resumed(s scale.State, gap time.Duration) scale.State {
	if gap < 0 || gap > freshMemory {
		s = unwatched(s)
	}
	if !s.LastData.IsZero() {
		s.LastData = s.LastData.Add(max(gap, 0)) // nothing was read meanwhile: that is no silence of the signals
	}
	return s
}

// unwatched is the state without what counts only while the workload is
// watched: the window and the changes of its replicas.
func unwatched(s scale.State) scale.State {
	s.Since, s.Wants, s.Changes = time.Time{}, nil, nil
	return s
}

// longestPause is the longest time between two decisions in which a workload
// counts as watched.
func (s *shared) longestPause() time.Duration { return max(freshMemory, 3*s.cfg.Tick) }
