// SPDX-License-Identifier: Apache-2.0

package promise

import "math"

// Load is the tokens/s that a workload is asked for.
type Load struct{ Prompt, Output float32 }

// Plan says how many replicas a load gets: those that are loaded to Target by the highest
// step within Window, and by no less than Reserve. The zero Plan is none.
type Plan struct {
	Target  float64 `json:"target"`  // busy share of a replica, above 0
	Window  float64 `json:"window"`  // seconds
	Reserve float64 `json:"reserve"` // busy replicas

	// What the plan came to in the replay that chose it.
	Share    float64 `json:"share"`    // of the requests that missed a limit
	Replicas float64 `json:"replicas"` // mean, starting ones included
	// Short is set if it missed more than was allowed, because the load jumps faster than
	// replicas start. Needs is the mean replicas of the cheapest plan that would have kept
	// the objective; 0: none would.
	Short bool    `json:"short,omitempty"`
	Needs float64 `json:"needs,omitempty"`
	// Looser and Stricter are the mean replicas with twice and half of the allowed misses.
	Looser   float64 `json:"looser"`
	Stricter float64 `json:"stricter"`
}

// Replay is recorded load, and what is needed to replay it as a fluid: each step has a mean
// load, and replicas serve one start-up after they were asked for.
type Replay struct {
	Loads    []Load  // of the steps, oldest first
	Seconds  float64 // of a step
	Cost     Cost
	Shares   Shares
	Knee     float64 // busy share at which replicas are full by their limits
	Startup  float64 // seconds until a replica serves
	Min, Max int     // replicas

	// Price is what it is worth to avoid as many misses as the objective allows: replicas,
	// as a multiple of those that the mean load needs. Misses that cost more are not
	// avoided, because the load jumps faster than replicas start.
	Price float64
}

// The plans: targets, windows in seconds, and reserves as shares of the highest load of a
// day.
var (
	targets  = [...]float32{0.85, 0.75, 0.66, 0.58, 0.51, 0.45, 0.39, 0.34, 0.3, 0.26, 0.22, 0.18, 0.15, 0.12, 0.1, 0.08}
	windows  = [...]float64{60, 180, 300, 600, 900, 1800, 3600, 7200}
	reserves = [...]float32{0, 0.3, 0.5, 0.7, 1}
)

const (
	// halfLife is the age at which a step counts half, in seconds.
	halfLife = 4 * 3600
	// trusted is how long a record is that chooses any window, in seconds.
	trusted = 4 * 3600
	// leastTrust is what the price counts without a record.
	leastTrust = 0.2
	// day is the time whose highest load a reserve is a share of, in seconds.
	day = 24 * 3600
)

// Choose returns the plan with the fewest replicas of those that miss at most the allowed
// share of the requests, above 0. If avoiding that many misses costs more than Price, it
// returns the plan that avoids those that are worth it.
func (r *Replay) Choose(allowed float64) Plan {
	plans, mean := r.plans()
	p := r.choose(plans, mean, allowed)
	p.Looser, p.Stricter = r.choose(plans, mean, 2*allowed).Replicas, r.choose(plans, mean, allowed/2).Replicas
	if p.Share > allowed {
		p.Short = true
		if k := cheapest(plans, allowed); k >= 0 {
			p.Needs = plans[k].Replicas
		}
	}
	return p
}

func (r *Replay) choose(plans []Plan, mean, allowed float64) Plan {
	// One rise in a short record says little about how often it comes.
	price := r.Price * mean / allowed * (1 - (1-leastTrust)*r.doubt()) // in replicas
	best := 0
	for i := range plans {
		if plans[i].Replicas+price*plans[i].Share < plans[best].Replicas+price*plans[best].Share {
			best = i
		}
	}
	if plans[best].Share <= allowed {
		best = cheapest(plans, allowed)
	}
	return plans[best]
}

// cheapest is the plan with the fewest replicas of those that miss at most the allowed
// share of the requests; -1: there is none.
func cheapest(plans []Plan, allowed float64) int {
	best := -1
	for i := range plans {
		if p := &plans[i]; p.Share <= allowed && (best < 0 || p.Replicas < plans[best].Replicas) {
			best = i
		}
	}
	return best
}

// plans replays all plans, and returns the replicas that the mean load needs.
func (r *Replay) plans() (out []Plan, mean float64) {
	f := r.fluid()
	out = make([]Plan, 0, len(windows)*len(reserves)*len(targets))
	ofDay := highest(f.busy, r.steps(day))
	want := make([]float32, len(f.busy))
	// A short record has seen neither the load come back nor what it can rise to: the
	// shorter it is, the closer a plan is to the one without a record, or the safer.
	doubt := r.doubt()
	shortest, fullest := defaultWindow*doubt, float32(1-(1-defaultLoad*r.Knee)*doubt)
	for _, window := range windows {
		if window < shortest {
			continue
		}
		ofWindow := highest(f.busy, r.steps(window))
		for _, reserve := range reserves {
			for i := range want {
				want[i] = max(ofWindow[i], reserve*ofDay[i])
			}
			wanted, ready := runs(want), runs(lowest(want, r.steps(r.Startup)))
			for _, target := range targets {
				if target > fullest {
					continue
				}
				p := Plan{Target: float64(target), Window: window, Share: f.share(r, ready, 1/target), Replicas: f.replicas(r, wanted, 1/target)}
				if n := len(ofDay); n > 0 {
					p.Reserve = float64(reserve * ofDay[n-1])
				}
				out = append(out, p)
			}
		}
	}
	return out, max(f.load/max(f.weight[len(f.busy)], least)/r.Knee, 0.5)
}

// doubt is 1 without a record, and 0 from trusted seconds on.
func (r *Replay) doubt() float64 { return max(0, 1-float64(len(r.Loads))*r.Seconds/trusted) }

// steps is the number of steps in some seconds, at least one.
func (r *Replay) steps(seconds float64) int { return max(1, int(math.Ceil(seconds/r.Seconds))) }

// fluid is the load of a replay in busy replicas, with its weights.
type fluid struct {
	busy   []float32
	loads  []float32 // weight × busy
	weight []float64 // of all steps before
	load   float64   // sum of loads
}

// least keeps a quotient finite.
const least = 1e-9

func (r *Replay) fluid() (f fluid) {
	n := len(r.Loads)
	f = fluid{busy: make([]float32, n), loads: make([]float32, n), weight: make([]float64, n+1)}
	for i, l := range r.Loads {
		w := math.Exp2(-float64(n-1-i) * r.Seconds / halfLife)
		f.busy[i] = float32(r.Cost.Busy(l))
		f.loads[i] = float32(w) * f.busy[i]
		f.weight[i+1] = f.weight[i] + w
		f.load += float64(f.loads[i])
	}
	return f
}

// run is a value that a series keeps up to a step.
type run struct {
	value float32
	end   int
}

func runs(x []float32) (out []run) {
	for i, v := range x {
		if n := len(out); n > 0 && out[n-1].value == v {
			out[n-1].end = i + 1
		} else {
			out = append(out, run{v, i + 1})
		}
	}
	return out
}

// share is the share of the requests that misses a limit where these busy replicas are
// ready, times perBusy.
func (f *fluid) share(r *Replay, ready []run, perBusy float32) float64 {
	missed, i := 0.0, 0
	for _, x := range ready {
		each, sum := 1/max(1, r.replicas(x.value*perBusy)), float32(0)
		for ; i < x.end; i++ {
			sum += f.loads[i] * r.Shares[classOf(f.busy[i]*each)]
		}
		missed += float64(sum)
	}
	return missed / max(f.load, least)
}

// replicas is the mean number of replicas where these busy replicas are wanted, times
// perBusy.
func (f *fluid) replicas(r *Replay, wanted []run, perBusy float32) float64 {
	sum, before := 0.0, 0
	for _, x := range wanted {
		sum += float64(r.replicas(x.value*perBusy)) * (f.weight[x.end] - f.weight[before])
		before = x.end
	}
	return sum / max(f.weight[len(f.busy)], least)
}

// replicas rounds up, within the bounds.
func (r *Replay) replicas(x float32) float32 {
	if most := float32(r.Max); x >= most {
		return most
	}
	n := float32(int32(x))
	if n < x {
		n++
	}
	return max(n, float32(r.Min))
}

// highest is the highest of each element and the n−1 before it.
func highest(x []float32, n int) []float32 {
	return slide(x, n, func(a, b float32) bool { return a >= b })
}

// lowest is the lowest of each element and the n−1 before it.
func lowest(x []float32, n int) []float32 {
	return slide(x, n, func(a, b float32) bool { return a <= b })
}

func slide(x []float32, n int, beats func(a, b float32) bool) []float32 {
	out, queue := make([]float32, len(x)), make([]int32, 0, len(x))
	first := 0 // of the queue, whose elements each beat those behind them
	for i, v := range x {
		for len(queue) > first && beats(v, x[queue[len(queue)-1]]) {
			queue = queue[:len(queue)-1]
		}
		queue = append(queue, int32(i))
		if int(queue[first]) <= i-n {
			first++
		}
		out[i] = x[queue[first]]
	}
	return out
}
