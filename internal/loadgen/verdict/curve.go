// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math"
	"sort"
	"time"
)

// curve is what was generated over time, in seconds since zero.
type curve struct {
	zero     time.Time
	points   []point
	min, max float64
	step     float64 // length of the longest point
}

// end is the end of the load.
func (c *curve) end() float64 { return c.points[len(c.points)-1].end }

type point struct {
	start, end, value, err float64
	before                 float64 // integral of the points before
	known                  float64 // seconds of the points before
}

// maxPoints bounds the steps that are compared: a day of seconds.
const maxPoints = 86400

// newCurve leaves out points without a length or a finite value, and those that overlap the one before.
func newCurve(list []Generated) (c curve) {
	c.min, c.max = math.Inf(1), math.Inf(-1)
	for _, g := range list {
		if len(c.points) == maxPoints {
			break
		}
		if c.zero.IsZero() {
			c.zero = g.Start
		}
		p := point{start: g.Start.Sub(c.zero).Seconds(), end: g.End.Sub(c.zero).Seconds(), value: g.Value, err: math.Abs(g.Error)}
		if !(p.end > p.start) || math.IsNaN(p.value+p.err) || math.IsInf(p.value+p.err, 0) {
			continue
		}
		if n := len(c.points); n > 0 {
			last := c.points[n-1]
			if p.start = max(p.start, last.end); p.end <= p.start {
				continue
			}
			p.before = last.before + last.value*(last.end-last.start)
			p.known = last.known + last.end - last.start
		}
		c.points = append(c.points, p)
		c.step = max(c.step, p.end-p.start)
		c.min, c.max = min(c.min, p.value), max(c.max, p.value)
	}
	return c
}

// first returns the index of the first point that ends after t.
func (c *curve) first(t float64) int {
	return sort.Search(len(c.points), func(i int) bool { return c.points[i].end > t })
}

// bounds returns the lowest and highest value in a time, and the largest error. It reports false if the time begins before
// the load, because what was there before is not known.
func (c *curve) bounds(from, to float64) (low, high, err float64, ok bool) {
	if len(c.points) == 0 || from < c.points[0].start {
		return 0, 0, 0, false
	}
	low, high = math.Inf(1), math.Inf(-1)
	for i := c.first(from); i < len(c.points) && c.points[i].start <= to; i++ {
		p := c.points[i]
		low, high, err, ok = min(low, p.value), max(high, p.value), max(err, p.err), true
	}
	return low, high, err, ok
}

// mean returns the mean in a time that the load covers in part.
func (c *curve) mean(from, to float64) (float64, bool) {
	if !(to > from) {
		return 0, false
	}
	a, seconds := c.integral(from)
	b, until := c.integral(to)
	if until-seconds < (to-from)/2 {
		return 0, false
	}
	return (b - a) / (until - seconds), true
}

// integral returns the integral up to t, and how many seconds of it are known.
func (c *curve) integral(t float64) (sum, known float64) {
	i := c.first(t)
	if i == len(c.points) {
		if i == 0 {
			return 0, 0
		}
		p := c.points[i-1]
		return p.before + p.value*(p.end-p.start), p.known + p.end - p.start
	}
	p := c.points[i]
	part := max(0, t-p.start)
	return p.before + p.value*part, p.known + part
}

// steps counts the changes by more than a tolerance of a load that stands still otherwise, and returns the median time between
// two of them; 0 for a load that moves.
func (c *curve) steps(tolerance float64) (n int, every float64) {
	still, last := 0, 0.0
	var gaps []float64
	for i := 1; i < len(c.points); i++ {
		switch change := math.Abs(c.points[i].value - c.points[i-1].value); {
		case change <= tolerance/5:
			still++
		case change > tolerance && (len(gaps) == 0 || c.points[i].start-last > 1.5*c.step): // a change may take two points
			gaps = append(gaps, c.points[i].start-last)
			last = c.points[i].start
		}
	}
	if 4*still < 3*(len(c.points)-1) {
		return 0, 0
	}
	return len(gaps), quantile(gaps, 0.5)
}
