// SPDX-License-Identifier: Apache-2.0

package scale

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
	// levelSpan is the time constant of the average. In replays of recorded load, 5
	// to 90 s cost about as much as they save. The shorter it is, the fewer requests
	// miss their limits.
	levelSpan = 5 * time.Second
	// shareSpan is that of a share of a GPU. A window keeps the highest of a noisy demand,
	// so that noise costs replicas. In replays of recorded load, 20 to 40 s miss least for
	// the same GPU-hours, of 5 to 60 s.
	shareSpan = 30 * time.Second
	// levelSettles is how many time constants a level takes to a new demand that it takes for
	// noise, within a twentieth.
	levelSettles = 3
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
	// levelGap is the time without a reading after which the average starts anew.
	levelGap = 30 * time.Second
	// mostDemand bounds the demand. It is far above any maxReplicas, and its square
	// is finite.
	mostDemand = math.MaxInt32 / 2
)

// next is the level after the demand x was read at now, averaged over span.
func (l Level) next(x float64, now time.Time, span time.Duration) Level {
	x = min(x, mostDemand)
	dt := now.Sub(l.At)
	if l.At.IsZero() || dt < 0 || dt > levelGap {
		return Level{Value: x, At: now}
	}
	band := min(noiseBand*math.Sqrt(l.Variance), mostNoise*max(x, l.Value))
	mean := l.Value + (x-l.Value)*newWeight(dt, span)
	off, floor := x-l.Value, noiseFloor*x
	// A step says little about the noise: it counts up to the end of the band.
	l.Variance += (min(off*off, band*band+floor*floor) - l.Variance) * newWeight(dt, noiseSpan)
	l.Value, l.At = min(max(mean, x-band), x+band), now
	return l
}

// newWeight is the weight of a new value in an average with the time constant
// span, dt after the last one.
func newWeight(dt, span time.Duration) float64 { return 1 - math.Exp(-float64(dt)/float64(span)) }
