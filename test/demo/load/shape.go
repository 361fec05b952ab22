// SPDX-License-Identifier: Apache-2.0

// Package load defines shapes of a load over time: constants, ramps, steps, waves,
// bursts, sequences of them, and recorded loads from a CSV of counts. A shape is a pure
// function of time. The caller generates the load: it steps a model, sends requests or
// keeps a GPU busy.
package load

import (
	"math"
	"time"
)

// Shape is a load over time.
type Shape interface {
	// At returns the load at t after the start, in the shape's unit, such as requests/s.
	// Before 0 it has the value at 0, and after the Duration the value at its end. It is
	// never negative or NaN.
	At(t time.Duration) float64
	// Duration returns how long the shape lasts.
	Duration() time.Duration
}

// Constant is a constant load.
type Constant struct {
	Rate float64
	For  time.Duration
}

// At returns the rate.
func (c Constant) At(time.Duration) float64 { return c.Rate }

// Duration is how long it lasts.
func (c Constant) Duration() time.Duration { return c.For }

// Ramp is a linear change from one load to another.
type Ramp struct {
	From, To float64
	For      time.Duration
}

// At returns the interpolated load.
func (r Ramp) At(t time.Duration) float64 {
	if t >= r.For {
		return r.To
	}
	return r.From + (r.To-r.From)*max(0, t.Seconds())/r.For.Seconds()
}

// Duration returns how long the change takes.
func (r Ramp) Duration() time.Duration { return r.For }

// Sequence is one shape after another.
type Sequence []Shape

// At returns the load of the current shape.
func (s Sequence) At(t time.Duration) float64 {
	for i, shape := range s {
		if d := shape.Duration(); t < d || i == len(s)-1 {
			return shape.At(t)
		}
		t -= shape.Duration()
	}
	return 0
}

// Duration is that of all shapes.
func (s Sequence) Duration() time.Duration {
	var sum time.Duration
	for _, shape := range s {
		sum += shape.Duration()
	}
	return sum
}

// Loop repeats a shape without end.
type Loop struct{ Shape Shape }

// At returns the load at t within the current repetition.
func (l Loop) At(t time.Duration) float64 {
	if d := l.Shape.Duration(); d > 0 {
		t = max(0, t) % d
	}
	return l.Shape.At(t)
}

// Duration returns the longest time.Duration.
func (l Loop) Duration() time.Duration { return math.MaxInt64 }
