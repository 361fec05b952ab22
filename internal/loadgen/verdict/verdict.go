// SPDX-License-Identifier: Apache-2.0

// Package verdict compares what a load generated on a GPU with what a source of metrics shows, and names the fault of a
// source that is wrong. It is pure.
package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"
)

// Generated is what a load generated in a time.
type Generated struct {
	Start, End time.Time
	Value      float64 // in the unit of the samples
	Error      float64 // half-width
}

// Sample is one answer of a source. NaN: the source answered without a value.
type Sample struct {
	At    time.Time
	Value float64
}

// Input is one source's view of one GPU's field.
type Input struct {
	Generated []Generated         // in order of time
	Samples   []Sample            // of the GPU that was loaded, in order of time
	Others    map[string][]Sample // by UUID, of GPUs that were not loaded
	IsRatio   bool                // the field is a ratio of 0 to 1
	// Tolerance is the half-width of what is within: of 1 for a ratio, else of the largest generated value. 0: Tolerance or
	// TrafficTolerance.
	Tolerance float64
}

// The tolerances. Counters of PCIe and NVLink traffic include the packets' headers, 8 to 12 %.
const (
	Tolerance        = 0.05
	TrafficTolerance = 0.15
	exactTolerance   = 0.01 // the resolution of a percentage
)

// Finding is the name of a verdict.
type Finding string

// The findings.
const (
	Exact      Finding = "exact"                 // within 1 % and the load's own error
	Within     Finding = "within"                // within the tolerance
	Off        Finding = "off"                   // wrong, in a way that has no name
	Lagging    Finding = "lagging"               // right, but later than the source's interval explains
	Frozen     Finding = "frozen"                // the value does not change
	Scaled     Finding = "scaled"                // right times a constant
	Over       Finding = "over 100 %"            // a ratio above 1
	OtherGPU   Finding = "another GPU's label"   // the value is shown as another GPU's
	Missing    Finding = "missing"               // the source has no value
	Unmeasured Finding = "could not be measured" // too little is known
)

// IsTrue reports whether the source is right.
func (f Finding) IsTrue() bool { return f == Exact || f == Within }

// Verdict is the result of a comparison. A nil pointer is a value that could not be determined.
type Verdict struct {
	Finding Finding `json:"verdict"`
	Detail  string  `json:"detail,omitempty"`
	Samples int     `json:"samples"` // with a value

	Bias     *float64 `json:"bias,omitempty"`            // mean of shown minus generated, in the field's unit
	Lag      *float64 `json:"lagSeconds,omitempty"`      // best fit; absent if the load did not change
	Interval *float64 `json:"intervalSeconds,omitempty"` // between two values of the source
	Scale    *float64 `json:"scale,omitempty"`           // of Scaled: shown ÷ generated
	OtherGPU string   `json:"otherGPU,omitempty"`        // of OtherGPU: the UUID
}

// String is the verdict in a table.
func (v Verdict) String() string {
	if v.Detail == "" {
		return string(v.Finding)
	}
	return string(v.Finding) + ": " + v.Detail
}

const (
	// latency is how old a value may be at a source that updates each second: the time since its collection, and since the
	// query before.
	latency = 2500 * time.Millisecond
	// longInterval is dcgm-exporter's default. A source that shows one value for longer, with two samples more, is frozen.
	longInterval = 30 * time.Second
	// leastShare is the share of samples that must agree. The others are outliers.
	leastShare = 0.95
	// leastLag and maxLag limit the search for a lag, in seconds.
	leastLag, maxLag = 2.0, 300.0
)

// Judge compares. It is pure.
func Judge(in Input) Verdict {
	c := newComparison(in)
	switch {
	case len(c.curve.points) == 0:
		return Verdict{Finding: Unmeasured, Detail: "the generated value is not known"}
	case len(in.Samples) == 0 && len(in.Others) == 0:
		return Verdict{Finding: Unmeasured, Detail: "no answer"}
	}
	v := c.judge(in)
	v.Samples = len(c.samples)
	return v
}

// comparison is a comparison under way. Times are seconds since the load's start.
type comparison struct {
	curve     curve
	samples   []sample
	asked     int // answers during the load, with or without a value
	hole      float64
	interval  float64 // of the source
	poll      float64 // between two answers
	scale     float64 // a ratio's 1, or the largest generated value
	tolerance float64
	isRatio   bool
}

// sample is a sample with a value.
type sample struct {
	at, value float64
	since     float64 // when the value was first seen
}

func newComparison(in Input) *comparison {
	c := &comparison{scale: 1, isRatio: in.IsRatio, tolerance: cmp.Or(in.Tolerance, Tolerance)}
	c.curve = newCurve(in.Generated)
	if !in.IsRatio {
		c.tolerance = cmp.Or(in.Tolerance, TrafficTolerance)
		c.scale = c.curve.max
	}
	if len(c.curve.points) > 0 {
		c.read(in.Samples)
	}
	return c
}

// read keeps the samples of the load's time.
func (c *comparison) read(list []Sample) {
	c.samples, c.asked, c.hole = nil, 0, 0
	end := c.curve.end()
	last, began := math.NaN(), 0.0
	var changes, gaps, polls []float64 // changes: of the value, during the load
	holeSince, before := math.NaN(), math.NaN()
	for _, s := range list {
		at := s.At.Sub(c.curve.zero).Seconds()
		known := !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0)
		if known && s.Value != last {
			if !math.IsNaN(last) && at >= 0 {
				gaps, changes = append(gaps, at-began), append(changes, at)
			}
			last, began = s.Value, at
		}
		if at < 0 || at > end {
			continue
		}
		c.asked++
		if !math.IsNaN(before) {
			polls = append(polls, at-before)
		}
		before = at
		if !known {
			if math.IsNaN(holeSince) {
				holeSince = at
			}
			c.hole = max(c.hole, at-holeSince)
			continue
		}
		holeSince = math.NaN()
		c.samples = append(c.samples, sample{at, s.Value, began})
	}
	c.poll = quantile(polls, 0.5)
	c.interval = max(c.poll, quantile(gaps, 0.05))
	switch {
	case c.interval > 2*longInterval.Seconds(): // the load did not change, or the source does not
		c.interval = c.poll
	case c.followsSteps(changes):
		c.interval = c.usualInterval(changes)
	}
}

// quantile sorts the list; 0 if it is empty.
func quantile(list []float64, q float64) float64 {
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[int(q*float64(len(list)-1))]
}

func (c *comparison) judge(in Input) Verdict {
	lacks := len(c.samples) == 0
	if lacks || c.hole > max(5, 3*c.interval, 3*c.poll) {
		if v, ok := c.other(in.Others); ok {
			return v
		}
		if c.asked == 0 {
			return Verdict{Finding: Unmeasured, Detail: "no answer during the load"}
		}
		detail := ""
		if !lacks {
			detail = fmt.Sprintf("no value in %d of %d answers, up to %.0f s long", c.asked-len(c.samples), c.asked, c.hole)
		}
		return c.facts(Verdict{Finding: Missing, Detail: detail})
	}
	if v, ok := c.frozen(); ok { // before the truth: the load may pass the value again and again
		if other, ok := c.other(in.Others); ok {
			return other
		}
		return c.facts(v)
	}
	v, judged := c.truth()
	if v.Finding.IsTrue() || judged < 2 {
		if judged < 2 {
			return Verdict{Finding: Unmeasured, Detail: fmt.Sprintf("%d values during the load: let it run longer", judged)}
		}
		if late, ok := c.delayed(); ok {
			return c.facts(late)
		}
		v = c.facts(v)
		// Under a load that moves fast, each value of a source that is wrong by a factor can be an honest one.
		if wrong, ok := c.scaled(); ok && math.Abs(*wrong.Scale-1) > 0.2 && v.Bias != nil && math.Abs(*v.Bias) > c.tolerance*c.scale {
			return c.facts(wrong)
		}
		return v
	}
	if other, ok := c.other(in.Others); ok {
		return other
	}
	if last := c.samples[len(c.samples)-1]; c.neverChanged() && last.at < c.longest() {
		return c.facts(Verdict{Finding: Unmeasured, Detail: fmt.Sprintf("one value only, %.4g: let the load run for a minute", last.value)})
	}
	for _, name := range []func() (Verdict, bool){c.scaled, c.delayed, c.lagging, c.over} {
		if named, ok := name(); ok {
			return c.facts(named)
		}
	}
	return c.facts(v)
}

// truth judges the samples as they are, and returns how many could be.
func (c *comparison) truth() (Verdict, int) {
	if share, n := c.agree(1, 0, exactTolerance); share >= leastShare {
		return Verdict{Finding: Exact}, n
	}
	share, n := c.agree(1, 0, c.tolerance)
	if share >= leastShare {
		return Verdict{Finding: Within}, n
	}
	return Verdict{Finding: Off, Detail: fmt.Sprintf("%.0f %% of the values are outside of the tolerance", 100*(1-share))}, n
}

// agree returns the share of samples that, divided by k, a source with this lag and its interval can honestly show: a mean
// of what was generated in some time between its last two collections. A value may be held for an interval.
func (c *comparison) agree(k, lag, tolerance float64) (share float64, judged int) {
	good := 0
	for _, s := range c.samples {
		collected := max(s.since, s.at-1.5*c.interval-1) // at the earliest, without the latency
		to := s.at - lag + c.curve.step/2                // a value of a moment may be ahead of its step's mean
		if to > c.curve.end() {
			continue
		}
		low, high, err, ok := c.curve.bounds(collected-latency.Seconds()-max(1, c.interval)-lag, to)
		if !ok {
			continue
		}
		judged++
		slack := err + tolerance*c.scale
		if v := s.value / k; v >= low-slack && v <= high+slack {
			good++
		}
	}
	if judged == 0 {
		return 0, 0
	}
	return float64(good) / float64(judged), judged
}

// varies reports whether the load changed enough to tell faults apart.
func (c *comparison) varies() bool { return c.curve.max-c.curve.min > 3*c.tolerance*c.scale }

// other looks for the load among the values of other GPUs.
func (c *comparison) other(others map[string][]Sample) (Verdict, bool) {
	for _, uuid := range slices.Sorted(maps.Keys(others)) {
		o := *c
		o.read(others[uuid])
		if v, judged := o.truth(); v.Finding.IsTrue() && judged >= 2 && o.curve.max > 3*o.tolerance*o.scale {
			return Verdict{Finding: OtherGPU, Detail: uuid, OtherGPU: uuid}, true
		}
	}
	return Verdict{}, false
}

// frozen finds a value that has not changed until the end although the load did.
func (c *comparison) frozen() (Verdict, bool) {
	last := c.samples[len(c.samples)-1]
	held := last.at - last.since
	// The means that an honest source could show, after the value and long enough before the last answer. A load that
	// changes seldom makes the interval look longer than it is.
	low, high, window, every := math.Inf(1), math.Inf(-1), max(1, c.interval), max(0.5, c.poll)
	differs, longest := 0.0, 0.0 // seconds: a source that reads moments does not see a short dip
	for t := max(0, last.since) + window; t <= last.at-c.interval-latency.Seconds(); t += every {
		mean, ok := c.curve.mean(t-window, t)
		if !ok {
			continue
		}
		low, high = min(low, mean), max(high, mean)
		if differs += every; math.Abs(mean-last.value) <= c.tolerance*c.scale {
			differs = 0
		}
		longest = max(longest, differs)
	}
	if high-low <= 2*c.tolerance*c.scale || longest < window+2 {
		return Verdict{}, false
	}
	neverChanged := c.neverChanged()
	if neverChanged && held < c.longest() || held < max(5, 3*c.interval) {
		return Verdict{}, false
	}
	detail := fmt.Sprintf("at %.4g", last.value)
	if !neverChanged {
		detail += fmt.Sprintf(" since second %.0f", last.since)
	}
	return Verdict{Finding: Frozen, Detail: detail}, true
}

// factor returns the median of shown ÷ generated, for values that are delay old and the mean of window, and how far the
// factors are apart relative to it.
func (c *comparison) factor(delay, window float64) (k, width float64, ok bool) {
	var list []float64
	for i, s := range c.samples {
		mean, known := c.curve.mean(s.since-delay-window, s.since-delay)
		if known && mean >= 0.1*c.scale && (i == 0 || s.since != c.samples[i-1].since) {
			list = append(list, s.value/mean)
		}
	}
	if k = quantile(list, 0.5); len(list) < 3 || k <= 0 {
		return 0, 0, false
	}
	return k, (quantile(list, 0.9) - quantile(list, 0.1)) / k, true
}

// neverChanged reports whether there is one value only.
func (c *comparison) neverChanged() bool { return c.samples[len(c.samples)-1].since <= c.samples[0].at }

// longest is how many seconds a source that works may show one value of a load that changes.
func (c *comparison) longest() float64 { return longInterval.Seconds() + 2*c.poll }

// scaled finds a constant factor.
func (c *comparison) scaled() (Verdict, bool) {
	if !c.varies() {
		return Verdict{}, false
	}
	k, spread := 0.0, math.Inf(1)
	for _, window := range []float64{0, 0.25, 0.5, 0.75, 1} { // of the interval, which a value may be the mean of
		for delay := -c.curve.step; delay <= latency.Seconds(); delay += 0.25 { // a value of a moment may be ahead of its step's mean
			if factor, width, ok := c.factor(delay, max(1, window*c.interval)); ok && width < spread {
				k, spread = factor, width
			}
		}
	}
	if math.Abs(k-1) <= c.tolerance/2 || spread > 0.3 {
		return Verdict{}, false
	}
	if share, _ := c.agree(k, 0, c.tolerance); share < leastShare {
		return Verdict{}, false
	}
	detail := fmt.Sprintf("× %.3g", k)
	if c.isRatio && c.exceeds() > 0 {
		detail += ", over 100 %"
	}
	return Verdict{Finding: Scaled, Detail: detail, Scale: &k}, true
}

// exceeds counts the values above 100 %.
func (c *comparison) exceeds() (n int) {
	for _, s := range c.samples {
		if s.value > 1+c.tolerance {
			n++
		}
	}
	return n
}

func (c *comparison) over() (Verdict, bool) {
	n := c.exceeds()
	if !c.isRatio || n == 0 {
		return Verdict{}, false
	}
	highest := slices.MaxFunc(c.samples, func(a, b sample) int { return cmp.Compare(a.value, b.value) }).value
	return Verdict{Finding: Over, Detail: fmt.Sprintf("up to %.1f %%", 100*highest)}, true
}

// spread is the variance of the values.
func (c *comparison) spread() float64 {
	sum, squares, n := 0.0, 0.0, float64(len(c.samples))
	for _, s := range c.samples {
		sum += s.value
		squares += s.value * s.value
	}
	return squares/n - sum/n*sum/n
}

// facts adds what was measured.
func (c *comparison) facts(v Verdict) Verdict {
	sum, n := 0.0, 0
	for _, s := range c.samples {
		if mean, ok := c.curve.mean(s.at-max(1, c.interval), s.at); ok {
			sum += s.value - mean
			n++
		}
	}
	if n > 0 {
		bias := sum / float64(n)
		v.Bias = &bias
		if v.Finding == Off && math.Abs(bias) > c.tolerance*c.scale/2 {
			v.Detail += fmt.Sprintf("; %+.3g on average", bias)
		}
	}
	if c.interval > 0 {
		interval := c.interval
		v.Interval = &interval
	}
	if v.Finding.IsTrue() && c.varies() {
		best, least := 0.0, math.Inf(1)
		for lag := 0.0; lag <= latency.Seconds()+1; lag += 0.1 {
			if r, ok := c.residual(lag); ok && r < least {
				best, least = lag, r
			}
		}
		if !math.IsInf(least, 1) {
			v.Lag = &best
		}
	}
	return v
}
