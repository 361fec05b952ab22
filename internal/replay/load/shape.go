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

// Steps is a sequence of levels of equal duration.
type Steps struct {
	Levels []float64
	Each   time.Duration
}

// At returns the level at t; 0 without levels.
func (s Steps) At(t time.Duration) float64 {
	if len(s.Levels) == 0 || s.Each <= 0 {
		return 0
	}
	i := min(max(0, int(t/s.Each)), len(s.Levels)-1)
	return s.Levels[i]
}

// Duration is that of all levels.
func (s Steps) Duration() time.Duration { return time.Duration(len(s.Levels)) * s.Each }

// Sine is a sine wave around a mean, which starts at the mean and rises first. It is cut
// at 0 if the amplitude exceeds the mean.
type Sine struct {
	Mean, Amplitude float64
	Period, For     time.Duration
}

// At returns the value of the wave.
func (s Sine) At(t time.Duration) float64 {
	t = min(max(0, t), s.For)
	if s.Period <= 0 {
		return max(0, s.Mean)
	}
	return max(0, s.Mean+s.Amplitude*math.Sin(2*math.Pi*t.Seconds()/s.Period.Seconds()))
}

// Duration is how long it lasts.
func (s Sine) Duration() time.Duration { return s.For }

// Burst is a base load with a peak at the end of every period.
type Burst struct {
	Base, Peak    float64
	Every, Length time.Duration
	For           time.Duration
}

// At returns the peak within a burst, else the base.
func (b Burst) At(t time.Duration) float64 {
	t = min(max(0, t), b.For)
	if b.Every > 0 && t%b.Every >= b.Every-b.Length {
		return b.Peak
	}
	return b.Base
}

// Duration is how long it lasts.
func (b Burst) Duration() time.Duration { return b.For }

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

// Peak returns a shape's highest load at this many evenly spaced times.
func Peak(s Shape, steps int) float64 {
	high := s.At(0)
	for i := range steps {
		t := time.Duration(float64(s.Duration()) * float64(i+1) / float64(steps))
		high = max(high, s.At(t))
	}
	return high
}
