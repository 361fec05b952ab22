// SPDX-License-Identifier: Apache-2.0

// Package memory keeps the engine's state in the status of a GPUAutoscaler, so that a
// restarted controller decides as one that has run on.
package memory

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/latency"
	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

const (
	// maxEncoded bounds the engine's state in a status.
	maxEncoded = 3 << 10 // bytes of JSON
	// maxDecoded bounds the state that is decoded from a status, which other users may
	// have written.
	maxDecoded = 4 * maxEncoded
	// maxKeptEntries bounds the number of wants, and of changes, in a status.
	maxKeptEntries = 24
	// WriteInterval is the longest time between two writes of a state that changes.
	WriteInterval = 30 * time.Second
	// MaxGap is the age up to which a stored state is continued without a restart of
	// the stabilisation window.
	MaxGap = 2 * WriteInterval
)

// Of returns the state in the form of a status; nil if the state is empty, or if it cannot
// be reduced to maxEncoded.
func Of(s *scale.State, now time.Time) *v1alpha1.Memory {
	if s.Since.IsZero() && s.DecidedAt.IsZero() {
		return nil
	}
	if !s.DecidedAt.IsZero() && s.DecidedAt.Before(now) {
		now = s.DecidedAt // the signals were not read since
	}
	small := s.Truncate(time.Millisecond)
	small.Wants = compactWants(small.Wants)
	small.Changes = small.Changes[max(0, len(small.Changes)-maxKeptEntries):]
	each := func(drop func(*scale.SignalState)) func() {
		return func() {
			for i := range small.Signals {
				drop(&small.Signals[i])
			}
		}
	}
	for _, drop := range []func(){
		func() {},
		each(func(x *scale.SignalState) { x.Trend = trend.Trend{} }),                         // forecasts are needed least
		each(func(x *scale.SignalState) { x.Level, x.Quick = trend.Level{}, trend.Level{} }), // averages over seconds
		each(func(x *scale.SignalState) { x.Arrivals = scale.ArrivalModel{} }),
		each(func(x *scale.SignalState) { x.TokenLatency, x.FirstTokenLatency = latency.Curve{}, latency.Curve{} }),
		func() { small.Signals = nil },
		func() { small.Changes = nil },
	} {
		drop()
		b, err := json.Marshal(small)
		if err != nil {
			return nil
		}
		if len(b) <= maxEncoded {
			if b, err = pack(b); err != nil {
				return nil
			}
			return &v1alpha1.Memory{Time: metav1.NewMicroTime(now), State: runtime.RawExtension{Raw: b}}
		}
	}
	return nil
}

// compactWants returns the wants, oldest first, that are higher or lower than all
// later ones. They include the extremes of every window that ends now.
func compactWants(wants []scale.Want) []scale.Want {
	var kept []scale.Want // newest first
	for i := len(wants) - 1; i >= 0; i-- {
		w := wants[i]
		if n := len(kept); n > 0 {
			low, high := kept[n-1].Low, kept[n-1].High
			if w.Low >= low && w.High <= high {
				continue
			}
			// A kept want also covers the extremes of all newer wants.
			w.Low, w.High = min(w.Low, low), max(w.High, high)
		}
		kept = append(kept, w)
	}
	for len(kept) > maxKeptEntries {
		kept = mergePairs(kept)
	}
	out := make([]scale.Want, 0, len(kept))
	for i := len(kept) - 1; i >= 0; i-- {
		out = append(out, kept[i])
	}
	return out
}

// mergePairs joins each want with its older neighbour at the newer time. A want may
// thereby count for slightly longer, but never for a shorter time.
func mergePairs(newestFirst []scale.Want) []scale.Want {
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

// Decode returns the state in a status, in the current format or the previous
// one. If the state is too old, or from the future, the stabilisation window starts
// again before any scale-down. A malformed state is ignored.
func Decode(m *v1alpha1.Memory, now time.Time) scale.State {
	if m == nil {
		return scale.State{}
	}
	s, err := Stored(m)
	if err != nil {
		return scale.State{}
	}
	return Resume(s, now.Sub(m.Time.Time))
}

// Resume returns the state after a time without decisions. After a long gap, or
// a negative one, the stabilisation window starts again before any scale-down; the
// learned values are kept.
func Resume(s scale.State, gap time.Duration) scale.State {
	if gap < 0 || gap > MaxGap {
		s = ClearWindow(s)
	}
	if !s.LastData.IsZero() {
		s.LastData = s.LastData.Add(max(gap, 0)) // the gap does not count as a time without data
	}
	return s
}

// ClearWindow returns the state without the fields that are only valid while the
// workload is observed: the window, and the changes of its replicas.
func ClearWindow(s scale.State) scale.State {
	s.Since, s.Wants, s.Changes = time.Time{}, nil, nil
	return s
}
