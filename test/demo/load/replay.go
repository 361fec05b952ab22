// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// ReplayConfig holds the settings of a replay.
type ReplayConfig struct {
	// Column is the header of the column of counts; empty: requests.
	Column string
	// Speed is the number of seconds of the recording per second of the replay; 0: 1.
	// The rates stay those of the recording: only time is compressed.
	Speed float64
	// Peak is the highest load of the replay, to which it is scaled; 0: not scaled.
	Peak float64
	// Smooth is the time of the replay over which the load is averaged, so that a faster
	// replay keeps all requests; 0: one second.
	Smooth time.Duration
}

// Replay is a recorded load. Its rows are counts over the time to the next row.
type Replay struct {
	at    []float64 // seconds of the recording at which row i begins; one more for the end
	total []float64 // requests before at[i]
	cfg   ReplayConfig
	scale float64
}

// Open reads the counts of a CSV file, plain or gzip; see [trace.ReadCounts].
func Open(path string, cfg ReplayConfig) (*Replay, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	counts, err := trace.OpenCounts(path, cfg.Column)
	if err != nil {
		return nil, err
	}
	return newReplay(path, counts, cfg)
}

// complete sets the defaults and checks the values.
func (c *ReplayConfig) complete() error {
	c.Column = cmp.Or(c.Column, "requests")
	c.Speed = cmp.Or(c.Speed, 1)
	c.Smooth = cmp.Or(c.Smooth, time.Second)
	if !(c.Speed > 0) || math.IsInf(c.Speed, 0) || !(c.Peak >= 0) || math.IsInf(c.Peak, 0) || c.Smooth < 0 {
		return fmt.Errorf("load: speed %v, peak %v, smooth %v: want positive numbers", c.Speed, c.Peak, c.Smooth)
	}
	return nil
}

func newReplay(name string, counts []trace.Count, cfg ReplayConfig) (*Replay, error) {
	p := &Replay{cfg: cfg, scale: 1}
	p.accumulate(counts)
	if cfg.Peak > 0 {
		high := p.peakLoad()
		if high == 0 {
			return nil, fmt.Errorf("%s: column %q: all counts are 0 and cannot be scaled to a peak of %v", name, cfg.Column, cfg.Peak)
		}
		p.scale = cfg.Peak / high
	}
	return p, nil
}

// accumulate converts the counts to running totals. The last row has no successor, and
// lasts as long as the one before it.
func (p *Replay) accumulate(counts []trace.Count) {
	k := len(counts)
	p.at, p.total = make([]float64, k+1), make([]float64, k+1)
	for i, c := range counts {
		p.at[i] = c.At - counts[0].At
		p.total[i+1] = p.total[i] + c.N
	}
	p.at[k] = 2*counts[k-1].At - counts[k-2].At - counts[0].At
}

// At returns the mean load over the Smooth before t; at the start, over the first
// Smooth.
func (p *Replay) At(t time.Duration) float64 {
	end := p.at[len(p.at)-1]
	width := min(p.cfg.Smooth.Seconds()*p.cfg.Speed, end)
	to := min(max(t.Seconds()*p.cfg.Speed, width), end)
	return max(0, p.scale*(p.countBefore(to)-p.countBefore(to-width))/width) // rounding must not make it negative
}

// Duration returns the recording's duration divided by the speed. The result is bounded, so
// that it does not overflow.
func (p *Replay) Duration() time.Duration {
	s := p.at[len(p.at)-1] / p.cfg.Speed
	return time.Duration(min(s*float64(time.Second), math.MaxInt64/2))
}

// countBefore returns the number of requests before second s of the recording.
func (p *Replay) countBefore(s float64) float64 {
	i := sort.SearchFloat64s(p.at, s)
	if i == 0 {
		return 0
	}
	if i == len(p.at) {
		return p.total[i-1]
	}
	part := (s - p.at[i-1]) / (p.at[i] - p.at[i-1])
	return p.total[i-1] + part*(p.total[i]-p.total[i-1])
}

// peakLoad returns the maximum of At. It checks the starts of all rows, and the ends of
// the windows that start there: in between, the mean is linear.
func (p *Replay) peakLoad() float64 {
	high := 0.0
	for _, s := range p.at {
		t := s / p.cfg.Speed
		for _, x := range []float64{t, t + p.cfg.Smooth.Seconds()} {
			high = max(high, p.At(time.Duration(min(x*float64(time.Second), math.MaxInt64/2))))
		}
	}
	return high
}
