// SPDX-License-Identifier: Apache-2.0

package top

import (
	"math"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	// trendSeconds is the time that a curve covers, and trendPoints its number of points.
	trendSeconds = 60
	trendPoints  = 12
	// maxTrends bounds the number of curves.
	maxTrends = 4096
)

// Trends are the last minute of values that were read, for curves, and since when GPUs have
// been idle-held, as far as it was seen.
type Trends struct {
	curves map[string]*curve
	idle   map[string]time.Time
}

// NewTrends returns empty trends.
func NewTrends() *Trends {
	return &Trends{curves: map[string]*curve{}, idle: map[string]time.Time{}}
}

// curve has a value for each step of time, the newest at the end.
type curve struct {
	step   int64
	values [trendPoints]float64
}

// trendStep is the time between two points of a curve.
const trendStep = trendSeconds / trendPoints * int64(time.Second)

// Add adds what was read.
func (t *Trends) Add(f *Fleet, now time.Time) {
	step := now.UnixNano() / trendStep
	seen := make(map[string]bool, len(f.GPUs)+len(f.View.Workloads))
	for i := range f.GPUs {
		g := &f.GPUs[i]
		seen[g.UUID] = true
		if g.State == view.Stale {
			continue
		}
		t.point(g.UUID, step, *g.Utilization)
		if g.State != view.Idle {
			delete(t.idle, g.UUID)
		} else if _, ok := t.idle[g.UUID]; !ok && len(t.idle) < maxTrends {
			t.idle[g.UUID] = now
		}
	}
	for i := range f.View.Workloads {
		w := &f.View.Workloads[i]
		key := workloadID(w)
		seen[key] = true
		if s := deciding(w); s != nil && s.Value != nil && s.Target > 0 {
			t.point(key, step, 50**s.Value/s.Target) // the target is the middle of the curve
		}
	}
	for key, c := range t.curves {
		if !seen[key] && step-c.step > trendPoints {
			delete(t.curves, key)
		}
	}
	for key := range t.idle {
		if !seen[key] && t.curves[key] == nil {
			delete(t.idle, key)
		}
	}
}

// point adds a value from 0 to 100. Values of one step are averaged with the last one.
func (t *Trends) point(key string, step int64, v float64) {
	c := t.curves[key]
	if c == nil {
		if len(t.curves) >= maxTrends {
			return
		}
		c = &curve{step: step}
		for i := range c.values {
			c.values[i] = math.NaN()
		}
		t.curves[key] = c
	}
	for ; c.step < step; c.step++ {
		if step-c.step > trendPoints {
			c.step = step - trendPoints - 1
		}
		copy(c.values[:], c.values[1:])
		c.values[trendPoints-1] = math.NaN()
	}
	if last := &c.values[trendPoints-1]; math.IsNaN(*last) {
		*last = v
	} else {
		*last = (*last + v) / 2
	}
}

// IdleFor returns for how long a GPU has been seen idle-held; 0: it is not.
func (t *Trends) IdleFor(uuid string, now time.Time) time.Duration {
	if t == nil {
		return 0
	}
	since, ok := t.idle[uuid]
	if !ok {
		return 0
	}
	return now.Sub(since)
}

// Spark returns the curve of a key.
func (t *Trends) Spark(key string, ascii bool) string {
	if t == nil || t.curves[key] == nil {
		return strings.Repeat(" ", trendPoints)
	}
	return termtext.Spark(t.curves[key].values[:], ascii)
}
