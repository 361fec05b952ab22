// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// Arrivals draws the requests of a part of a trace, slice by slice. The same seed draws
// the same requests, whichever slices are read.
type Arrivals struct {
	// Factor scales the load: requests per recorded request.
	Factor float64

	trace    *Trace
	from, to float64 // seconds of the trace
	seed     uint64

	at  float64 // start of the next slice, in seconds of the trace
	row int
	buf []Request
}

const (
	// sliceSeconds is the shortest slice. It is long enough to make the cost per slice
	// negligible, and short enough for the requests to fit a CPU cache.
	sliceSeconds = 60
	// jitter is the longest time from a request to its copies, in seconds. They are spread up
	// to the next request: at one instant they would be a burst that the recording does not
	// have, and spread further they would hide those that it has.
	jitter = 5
)

// NewArrivals returns the arrivals between two seconds of a trace, at the recorded rate.
func NewArrivals(t *Trace, from, to float64, seed uint64) *Arrivals {
	a := &Arrivals{Factor: 1, trace: t, from: from, to: min(to, t.Duration), seed: seed}
	a.Rewind()
	return a
}

// Rewind returns to the first slice.
func (a *Arrivals) Rewind() {
	a.at = a.from
	if a.trace.Kind == Requests {
		a.row = sort.Search(len(a.trace.requests), func(i int) bool { return a.trace.requests[i].At >= a.from })
		return
	}
	a.row = sort.Search(len(a.trace.windows), func(i int) bool { w := &a.trace.windows[i]; return w.start+w.width > a.from })
}

// Next returns the requests of the next slice in order, and the end of the slice. Times
// are seconds since the start of the part. ok is false after the last slice. The requests
// are valid until the next call.
func (a *Arrivals) Next() (q []Request, until float64, ok bool) {
	if a.at >= a.to {
		return nil, a.to - a.from, false
	}
	a.buf = a.buf[:0]
	rng := rand.New(rand.NewPCG(a.seed, math.Float64bits(a.at)))
	begin := a.at
	if a.trace.Kind == Requests {
		a.at = min(a.to, begin+sliceSeconds)
		a.copyRequests(rng, begin)
	} else {
		a.drawWindows(rng)
	}
	slices.SortFunc(a.buf, func(x, y Request) int { return cmp.Compare(x.At, y.At) })
	for i := range a.buf {
		a.buf[i].At -= a.from
	}
	return a.buf, a.at - a.from, true
}

// copyRequests copies the recorded requests of a slice, Factor times each on average.
func (a *Arrivals) copyRequests(rng *rand.Rand, begin float64) {
	all := a.trace.requests
	for ; a.row < len(all) && all[a.row].At < a.at; a.row++ {
		n := roundRandomly(rng, a.Factor)
		for k := range n {
			q := all[a.row]
			if k > 0 {
				end := min(a.at, q.At+jitter)
				if a.row+1 < len(all) {
					end = min(end, all[a.row+1].At)
				}
				q.At += rng.Float64() * max(0, end-q.At)
			}
			a.buf = append(a.buf, q)
		}
	}
}

// drawWindows draws the requests of all windows that start in the slice.
func (a *Arrivals) drawWindows(rng *rand.Rand) {
	all := a.trace.windows
	limit := a.at + sliceSeconds
	for a.row < len(all) && (all[a.row].start < limit || all[a.row].start <= a.at) {
		a.drawWindow(rng, &all[a.row])
		a.row++
	}
	if a.row < len(all) {
		a.at = min(a.to, all[a.row].start)
	} else {
		a.at = a.to
	}
	a.buf = slices.DeleteFunc(a.buf, func(q Request) bool { return q.At < a.from || q.At >= a.to })
}

// drawWindow draws the requests of one window. Only the shape of the distribution is
// recorded. So the interarrival times are drawn with any scale, and then stretched to fill
// the window with the number of requests that follows from the rate.
func (a *Arrivals) drawWindow(rng *rand.Rand, w *window) {
	n := roundRandomly(rng, w.rate*a.Factor*w.width)
	if n == 0 {
		return
	}
	if w.interarrival == exponential {
		n = poisson(rng, w.rate*a.Factor*w.width)
	}
	first := len(a.buf)
	at, kind, shape := 0.0, w.interarrival, w.shape
	if a.Factor < 1 {
		kind, shape = thinned(kind, shape, a.Factor)
	}
	for range n {
		switch kind {
		case gammaDistribution:
			at += gamma(rng, shape)
		case weibull:
			at += math.Pow(rng.ExpFloat64(), 1/shape)
		default:
			at = rng.Float64()
		}
		q := Request{At: at}
		q.Prompt, q.Output = Tokens(rng, w.prompt, w.output)
		a.buf = append(a.buf, q)
	}
	total := 1.0
	switch kind {
	case gammaDistribution:
		total = at + gamma(rng, shape)
	case weibull:
		total = at + math.Pow(rng.ExpFloat64(), 1/shape)
	}
	if !(total > 0) || math.IsInf(total, 0) {
		total = 1
	}
	for i := first; i < len(a.buf); i++ {
		x := a.buf[i].At / total
		if !(x >= 0 && x < 1) {
			x = rng.Float64()
		}
		a.buf[i].At = w.start + w.width*x
	}
}

// thinned returns the distribution of the times between the requests that are left when each is
// kept with a probability p, as where fewer users send them. Their squared coefficient of
// variation is 1 + p·(c² − 1), where c² is the recorded one: with the recorded one itself, few
// requests would arrive in the bursts of many.
func thinned(kind distribution, shape, p float64) (distribution, float64) {
	var c2 float64
	switch kind {
	case gammaDistribution:
		c2 = 1 / shape
	case weibull:
		mean := math.Gamma(1 + 1/shape)
		c2 = math.Gamma(1+2/shape)/(mean*mean) - 1
	default:
		return kind, shape
	}
	if c2 = 1 + p*(c2-1); !(c2 > 0) || math.IsInf(c2, 0) {
		return kind, shape
	}
	return gammaDistribution, 1 / c2
}

// Recorded returns the sums of the recorded rates per minute, times Factor. It draws no
// requests.
func (a *Arrivals) Recorded() *Sums {
	sums := NewSums(a.to-a.from, sliceSeconds)
	for i := range a.trace.requests {
		if q := &a.trace.requests[i]; q.At >= a.from && q.At < a.to {
			sums.Add(q.At-a.from, a.Factor, q.Prompt, q.Output)
		}
	}
	for i := range a.trace.windows {
		w := &a.trace.windows[i]
		lo, hi := max(w.start, a.from), min(w.start+w.width, a.to)
		for at := lo; at < hi; {
			end := min(hi, a.from+(math.Floor((at-a.from)/sliceSeconds)+1)*sliceSeconds)
			if end <= at {
				break
			}
			sums.Add(at-a.from, w.rate*a.Factor*(end-at), w.prompt, w.output)
			at = end
		}
	}
	return sums
}
