// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
)

// Arrivals makes the requests of a stretch of a trace, slice by slice. The
// same seed makes the same requests, whichever slices are asked for.
type Arrivals struct {
	trace    *Trace
	from, to float64 // of the trace, seconds
	factor   float64 // requests for one of the recording
	seed     uint64

	at  float64 // where the next slice begins, of the trace
	row int
	buf []Request
}

const (
	// sliceSeconds is the least length of a slice: long enough that what a slice
	// costs does not count, short enough for a cache.
	sliceSeconds = 60
	// jitter is how far the copies of a request are scattered when a trace is
	// scaled up: copies at one instant would be a burst that nobody recorded.
	jitter = 5
	// The spread of the tokens around a window's mean, as the standard deviation
	// of their logarithm: between those of the Azure 2023 conversation trace's
	// prompts (1.2) and outputs (0.8), which are the same to the eye.
	promptSigma, outputSigma = 1.0, 0.8
)

func newArrivals(t *Trace, from, to, factor float64, seed uint64) *Arrivals {
	a := &Arrivals{trace: t, from: from, to: min(to, t.Duration), factor: factor, seed: seed}
	a.rewind()
	return a
}

func (a *Arrivals) rewind() {
	a.at = a.from
	if a.trace.Kind == Requests {
		a.row = sort.Search(len(a.trace.requests), func(i int) bool { return a.trace.requests[i].At >= a.from })
		return
	}
	a.row = sort.Search(len(a.trace.windows), func(i int) bool { w := &a.trace.windows[i]; return w.start+w.width > a.from })
}

// next returns the requests up to the end of a slice, in order, with times
// from the stretch's beginning; ok is false at its end. The slice is valid
// until the next call.
func (a *Arrivals) next() (q []Request, until float64, ok bool) {
	if a.at >= a.to {
		return nil, a.to - a.from, false
	}
	a.buf = a.buf[:0]
	rng := rand.New(rand.NewPCG(a.seed, math.Float64bits(a.at)))
	begin := a.at
	if a.trace.Kind == Requests {
		a.at = min(a.to, begin+sliceSeconds)
		a.copies(rng, begin)
	} else {
		a.renew(rng)
	}
	slices.SortFunc(a.buf, func(x, y Request) int { return cmp.Compare(x.At, y.At) })
	for i := range a.buf {
		a.buf[i].At -= a.from
	}
	return a.buf, a.at - a.from, true
}

// copies repeats recorded requests.
func (a *Arrivals) copies(rng *rand.Rand, begin float64) {
	all := a.trace.requests
	for ; a.row < len(all) && all[a.row].At < a.at; a.row++ {
		n := stochastic(rng, a.factor)
		for k := range n {
			q := all[a.row]
			if n > 1 || k > 0 {
				q.At = within(q.At+(rng.Float64()*2-1)*jitter, begin, a.at)
			}
			a.buf = append(a.buf, q)
		}
	}
}

// within turns back at the ends what has been scattered beyond them: cut off, it
// would heap up there.
func within(at, begin, end float64) float64 {
	if at < begin {
		at = 2*begin - at
	}
	if at >= end {
		at = 2*end - at
	}
	return min(max(at, begin), math.Nextafter(end, begin))
}

// renew draws the requests of all windows that begin in the slice.
func (a *Arrivals) renew(rng *rand.Rand) {
	all := a.trace.windows
	limit := a.at + sliceSeconds
	for a.row < len(all) && (all[a.row].start < limit || all[a.row].start <= a.at) {
		a.window(rng, &all[a.row])
		a.row++
	}
	if a.row < len(all) {
		a.at = min(a.to, all[a.row].start)
	} else {
		a.at = a.to
	}
	a.buf = slices.DeleteFunc(a.buf, func(q Request) bool { return q.At < a.from || q.At >= a.to })
}

// window draws one window's requests. ServeGen's fits carry a law's shape only:
// the times between arrivals are drawn and then stretched to fill the window
// with the rate's count.
func (a *Arrivals) window(rng *rand.Rand, w *window) {
	n := stochastic(rng, w.rate*a.factor*w.width)
	if n == 0 {
		return
	}
	if w.law == exponential {
		n = poisson(rng, w.rate*a.factor*w.width)
	}
	first := len(a.buf)
	at := 0.0
	for range n {
		switch w.law {
		case gammaLaw:
			at += gamma(rng, w.shape)
		case weibull:
			at += math.Pow(rng.ExpFloat64(), 1/w.shape)
		default:
			at = rng.Float64()
		}
		a.buf = append(a.buf, Request{
			At:     at,
			Prompt: tokens(rng, w.prompt, promptSigma),
			Output: tokens(rng, w.output, outputSigma),
		})
	}
	total := 1.0
	if w.law == gammaLaw {
		total = at + gamma(rng, w.shape)
	} else if w.law == weibull {
		total = at + math.Pow(rng.ExpFloat64(), 1/w.shape)
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

// tokens are log-normal around a mean, whole, and no more than 16 times it.
func tokens(rng *rand.Rand, mean, sigma float64) float64 {
	x := mean * math.Exp(sigma*rng.NormFloat64()-sigma*sigma/2)
	return math.Ceil(max(1, min(x, 16*mean)))
}

// stochastic rounds x up or down so that the mean is x.
func stochastic(rng *rand.Rand, x float64) int {
	n := math.Floor(x)
	if rng.Float64() < x-n {
		n++
	}
	return int(n)
}

// poisson draws a Poisson number, by its normal approximation where that is good.
func poisson(rng *rand.Rand, mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	n, p := 0, rng.ExpFloat64()
	for p < mean {
		n++
		p += rng.ExpFloat64()
	}
	return n
}

// gamma draws from Gamma(shape, 1): Marsaglia and Tsang, "A simple method for
// generating gamma variables", ACM TOMS 26 (2000), with their boost below 1.
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		return gamma(rng, shape+1) * math.Pow(1-rng.Float64(), 1/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		u := 1 - rng.Float64()
		if math.Log(u) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}

// rates are the replicas that the stretch asks for by its recorded rates, one
// for each minute, if a replica takes what m's limits let it take.
func (a *Arrivals) rates(c *capacities) []float64 {
	sums := newTally(a.to-a.from, sliceSeconds)
	for i := range a.trace.requests {
		if q := &a.trace.requests[i]; q.At >= a.from && q.At < a.to {
			sums.add(q.At-a.from, a.factor, q.Prompt, q.Output)
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
			sums.add(at-a.from, w.rate*a.factor*(end-at), w.prompt, w.output)
			at = end
		}
	}
	return sums.need(c)
}

// tally sums requests and their tokens in bins of time.
type tally struct {
	width             float64 // seconds
	n, prompt, output []float64
}

func newTally(seconds, width float64) *tally {
	k := int(math.Ceil(seconds/width)) + 1
	return &tally{width: width, n: make([]float64, k), prompt: make([]float64, k), output: make([]float64, k)}
}

func (t *tally) add(at, n, prompt, output float64) {
	i := min(max(0, int(at/t.width)), len(t.n)-1)
	t.n[i] += n
	t.prompt[i] += n * prompt
	t.output[i] += n * output
}

// need is the replicas that each bin asks for.
func (t *tally) need(c *capacities) []float64 {
	out := make([]float64, len(t.n))
	for i, n := range t.n {
		if n > 0 {
			out[i] = n / t.width / c.of(t.prompt[i]/n, t.output[i]/n)
		}
	}
	return out
}
