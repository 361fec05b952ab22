// SPDX-License-Identifier: Apache-2.0

package trace

import "math"

// Sums are the numbers of requests and their tokens in time bins of equal width.
type Sums struct {
	Width float64 // of a bin, in seconds
	Bins  []Bin
}

// Bin is the sum over one bin.
type Bin struct{ Requests, Prompt, Output float64 }

// NewSums returns empty bins of this width, in seconds, that cover a duration in seconds.
func NewSums(duration, width float64) *Sums {
	return &Sums{Width: width, Bins: make([]Bin, int(math.Ceil(duration/width))+1)}
}

// Add adds n requests with these mean tokens at a second. Times outside count to the first
// or the last bin.
func (s *Sums) Add(at, n, prompt, output float64) {
	b := &s.Bins[min(max(0, int(at/s.Width)), len(s.Bins)-1)]
	b.Requests += n
	b.Prompt += n * prompt
	b.Output += n * output
}
