// SPDX-License-Identifier: Apache-2.0

// Package load is the shapes that an offered load takes over time: constants,
// ramps, steps, waves, bursts, sequences of them, and real loads replayed from
// a CSV of counts. A shape is a pure function of time; what is done with it (a
// model stepped, requests sent, a GPU kept busy) is the caller's.
package load

import (
	"math"
	"time"
)

// Shape is a load over time.
type Shape interface {
	// At is the load at t after the beginning, in the shape's unit (for a load
	// of requests, requests a second). Before 0 it is as at 0 and after the
	// Duration as at its end; it is never negative and never NaN.
	At(t time.Duration) float64
	// Duration is how long the shape lasts.
	Duration() time.Duration
}

// Constant is the same load all the time.
type Constant struct {
	Rate float64
	For  time.Duration
}

// At is the rate.
func (c Constant) At(time.Duration) float64 { return c.Rate }

// Duration is how long it lasts.
func (c Constant) Duration() time.Duration { return c.For }

// Ramp goes evenly from one load to another.
type Ramp struct {
	From, To float64
	For      time.Duration
}

// At is the load on the way.
func (r Ramp) At(t time.Duration) float64 {
	if t >= r.For {
		return r.To
	}
	return r.From + (r.To-r.From)*max(0, t.Seconds())/r.For.Seconds()
}

// Duration is how long the way takes.
func (r Ramp) Duration() time.Duration { return r.For }

// Steps stays at each level for the same time.
type Steps struct {
	Levels []float64
	Each   time.Duration
}

// At is the level of the moment; without levels it is 0.
func (s Steps) At(t time.Duration) float64 {
	if len(s.Levels) == 0 || s.Each <= 0 {
		return 0
	}
	i := min(max(0, int(t/s.Each)), len(s.Levels)-1)
	return s.Levels[i]
}

// Duration is that of all levels.
func (s Steps) Duration() time.Duration { return time.Duration(len(s.Levels)) * s.Each }

// Sine is a wave around a mean that begins at the mean and rises first. Where
// the amplitude exceeds the mean the wave is cut at 0.
type Sine struct {
	Mean, Amplitude float64
	Period, For     time.Duration
}

// At is the wave's height.
func (s Sine) At(t time.Duration) float64 {
	t = min(max(0, t), s.For)
	if s.Period <= 0 {
		return max(0, s.Mean)
	}
	return max(0, s.Mean+s.Amplitude*math.Sin(2*math.Pi*t.Seconds()/s.Period.Seconds()))
}

// Duration is how long it lasts.
func (s Sine) Duration() time.Duration { return s.For }

// Burst is a base load with a peak of some length at the end of every period.
type Burst struct {
	Base, Peak    float64
	Every, Length time.Duration
	For           time.Duration
}

// At is the peak within a burst, else the base.
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

// At is the load of the shape whose turn it is.
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

// Loop is a shape again and again, for ever.
type Loop struct{ Shape Shape }

// At is the load within the round of the moment.
func (l Loop) At(t time.Duration) float64 {
	if d := l.Shape.Duration(); d > 0 {
		t = max(0, t) % d
	}
	return l.Shape.At(t)
}

// Duration is the longest there is.
func (l Loop) Duration() time.Duration { return math.MaxInt64 }

// Peak is a shape's highest load, looked for at this many even steps.
func Peak(s Shape, steps int) float64 {
	high := s.At(0)
	for i := range steps {
		t := time.Duration(float64(s.Duration()) * float64(i+1) / float64(steps))
		high = max(high, s.At(t))
	}
	return high
}
