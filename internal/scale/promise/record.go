// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"math"
	"time"
)

// Missing stands for a step without a reading. Missing is not zero: it lowers no mean, and
// a replay counts neither its requests nor its replicas.
var Missing = Load{Prompt: -1, Output: -1}

// isMissing reports whether the load is unknown, or impossible.
func (l Load) isMissing() bool {
	return !(l.Prompt >= 0 && l.Output >= 0 && l.Cache >= 0 && l.Prompt <= most && l.Output <= most && l.Cache <= most)
}

// keptSteps is how many steps are kept: a day, and the longest window.
const keptSteps = 26 * 3600 / StepSeconds

// record adds the load of a step of some seconds that ends at a time. Steps without a reading
// before it are missing.
func (s *State) record(load Load, at time.Time, seconds float64) {
	gap := 0
	if !s.At.IsZero() {
		gap = int(math.Round(min(max(0, at.Sub(s.At).Seconds()-seconds)/StepSeconds, keptSteps-1)))
	}
	kept := s.Loads[min(len(s.Loads), max(0, len(s.Loads)+gap+1-keptSteps)):]
	kept = kept[:len(kept):len(kept)]
	for range gap {
		kept = append(kept, Missing)
	}
	s.Loads, s.At = append(kept, load), at
}

// known is the number of steps that are not missing.
func known(loads []Load) (n int) {
	for _, l := range loads {
		if !l.isMissing() {
			n++
		}
	}
	return n
}

// Last is the load of the last step; ok is false if there is none.
func (s *State) Last() (l Load, ok bool) {
	if len(s.Loads) == 0 {
		return Load{}, false
	}
	l = s.Loads[len(s.Loads)-1]
	return l, !l.isMissing()
}

// highest is the highest mean of some steps within a window, of which now is the last one.
func (s *State) highest(cost *Cost, now float64, average, window int) float64 {
	average = max(1, average)
	last := s.Loads[max(0, len(s.Loads)-window-average+1):]
	// The mean of the steps before now, and now.
	sum, n := now, 1
	for i := len(last) - 1; i >= 0 && i > len(last)-average; i-- {
		if l := last[i]; !l.isMissing() {
			sum, n = sum+cost.Busy(l), n+1
		}
	}
	high := sum / float64(n)
	sum, n = 0, 0
	for i, l := range last {
		if !l.isMissing() {
			sum, n = sum+cost.Busy(l), n+1
		}
		if i >= average && !last[i-average].isMissing() {
			sum, n = sum-cost.Busy(last[i-average]), n-1
		}
		if i >= average-1 && n > 0 {
			high = max(high, sum/float64(n))
		}
	}
	return high
}

// Recall is the state with the load that was recorded before its own, until now. past returns
// steps, oldest first, of which the last one ends at until. It may return missing ones.
func (s State) Recall(now time.Time, past func(from, until time.Time) []Load) State {
	if s.At.IsZero() {
		s.At = now
	}
	length := func(steps int) time.Duration { return time.Duration(steps) * StepSeconds * time.Second }
	until := s.At.Add(-length(len(s.Loads)))
	before := past(until.Add(-length(keptSteps-len(s.Loads))), until)
	before = before[max(0, len(before)+len(s.Loads)-keptSteps):]
	for len(before) > 0 && before[0].isMissing() {
		before = before[1:]
	}
	if len(before) == 0 {
		return s
	}
	all := make([]Load, 0, len(before)+len(s.Loads))
	s.Loads = append(append(all, before...), s.Loads...)
	return s
}

// Minute returns the steps of a minute of which the mean and the highest load are known. Any
// other value than a number counts as no value.
func Minute(mean, highest Load) (steps [60 / StepSeconds]Load) {
	const n = float32(60 / StepSeconds)
	rest := func(mean, high float32) (float32, float32) {
		if !(high > mean) { // or not known
			return mean, mean
		}
		high = min(high, n*mean) // no other step is below zero
		return high, (n*mean - high) / (n - 1)
	}
	if mean.isMissing() {
		mean = Missing
	}
	var high, other Load
	high.Prompt, other.Prompt = rest(mean.Prompt, highest.Prompt)
	high.Output, other.Output = rest(mean.Output, highest.Output)
	if mean == Missing {
		high, other = Missing, Missing
	}
	for i := range steps {
		steps[i] = other
	}
	steps[len(steps)/2] = high
	return steps
}
