// SPDX-License-Identifier: Apache-2.0

// Package trend follows the demand of a signal: its average without noise, and a forecast of it.
package trend

import (
	"math"
	"time"
)

// Level is a signal's demand in replicas, averaged. A change that the noise of
// the last minute cannot explain counts at once; a smaller one is averaged.
type Level struct {
	Value    float64   `json:"value"`    // replicas
	Variance float64   `json:"variance"` // replicas²
	At       time.Time `json:"at"`
}

const (
	// noiseSpan is the time constant of the variance.
	noiseSpan = time.Minute
	// noiseBand is how many standard deviations the average may lie away from the
	// current reading. A step of the load exceeds them with its first reading.
	noiseBand = 3.0
	// mostNoise is the largest share of the demand that is taken for noise.
	mostNoise = 0.4
	// noiseFloor is the share of the demand that a change may add to a variance of
	// zero. Rare steps are therefore not learned as noise.
	noiseFloor = 0.02
	// arrived is the share of the demand within which the average has reached it: replicas are
	// rounded up.
	arrived = 0.001
	// Gap is the time without a reading after which the average starts anew.
	Gap = 30 * time.Second
	// Most bounds the demand. It is far above any maxReplicas, and its square is finite.
	Most = math.MaxInt32 / 2
)

// Next is the level after the demand x was read at now, averaged over span.
func (l Level) Next(x float64, now time.Time, span time.Duration) Level {
	x = min(x, Most)
	dt := now.Sub(l.At)
	if l.At.IsZero() || dt < 0 || dt > Gap {
		return Level{Value: x, At: now}
	}
	band := min(noiseBand*math.Sqrt(l.Variance), mostNoise*max(x, l.Value))
	mean := l.Value + (x-l.Value)*Weight(dt, span)
	off, floor := x-l.Value, noiseFloor*x
	// A step says little about the noise: it counts up to the end of the band.
	l.Variance += (min(off*off, band*band+floor*floor) - l.Variance) * Weight(dt, noiseSpan)
	l.Value, l.At = min(max(mean, x-band), x+band), now
	if math.Abs(l.Value-x) < arrived*x {
		l.Value = x
	}
	return l
}

// Weight is the weight of a new value in an average with the time constant
// span, dt after the last one.
func Weight(dt, span time.Duration) float64 { return 1 - math.Exp(-float64(dt)/float64(span)) }
