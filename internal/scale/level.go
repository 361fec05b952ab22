// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// Level is the demand of one signal, in replicas, with its noise told from its
// changes: what the noise of the last minute cannot explain counts at once, what
// it can is averaged.
type Level struct {
	Signal   string    `json:"signal"`
	Value    float64   `json:"value"`    // replicas
	Variance float64   `json:"variance"` // replicas²
	At       time.Time `json:"at"`
}

const (
	// levelSpan is the time constant of the average. Replays of recorded load with
	// 5 to 90 s differ little in what they cost for what they win; the shorter it
	// is, the fewer requests miss their limits.
	levelSpan = 5 * time.Second
	// noiseSpan is the time constant of the variance.
	noiseSpan = time.Minute
	// noiseBand is how many standard deviations from what is read now the average
	// may lie. A step of the load passes them in its first reading.
	noiseBand = 3.0
	// mostNoise is the share of the demand that is ever taken for noise.
	mostNoise = 0.4
	// noiseFloor is the share of the demand that a change may add to a variance
	// that was zero: of rare steps no noise is learned.
	noiseFloor = 0.02
	// levelGap is how long a signal may not be read before the average starts anew.
	levelGap = 30 * time.Second
	// mostDemand is where demand is cut off: far beyond any maxReplicas, and its
	// square is a number.
	mostDemand = math.MaxInt32 / 2
)

// next is the level after the demand x was read at now.
func (l Level) next(x float64, now time.Time) Level {
	x = min(x, mostDemand)
	dt := now.Sub(l.At)
	if l.At.IsZero() || dt < 0 || dt > levelGap {
		return Level{Signal: l.Signal, Value: x, At: now}
	}
	band := min(noiseBand*math.Sqrt(l.Variance), mostNoise*max(x, l.Value))
	mean := l.Value + (x-l.Value)*passed(dt, levelSpan)
	off, floor := x-l.Value, noiseFloor*x
	// A step tells little of the noise: it is cut off where the band ends.
	l.Variance += (min(off*off, band*band+floor*floor) - l.Variance) * passed(dt, noiseSpan)
	l.Value, l.At = min(max(mean, x-band), x+band), now
	return l
}

// passed is the weight of what is new after dt in an average over span.
func passed(dt, span time.Duration) float64 { return 1 - math.Exp(-float64(dt)/float64(span)) }
