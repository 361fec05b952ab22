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
	// day is the time whose highest load a reserve is a share of, in seconds.
	day = 24 * 3600
)

// Choose returns the plan with the fewest replicas of those that miss at most the allowed
// share of the requests, above 0. If avoiding that many misses costs more than Price, it
// returns the plan that avoids those that are worth it.
func (r *Replay) Choose(allowed float64) Plan {
	plans, mean := r.plans()
	price := r.Price * mean / allowed // in replicas
	best := 0
	for i := range plans {
		if plans[i].Replicas+price*plans[i].Share < plans[best].Replicas+price*plans[best].Share {
			best = i
		}
	}
	if plans[best].Share > allowed {
		return plans[best]
	}
	for i := range plans {
		if p := &plans[i]; p.Share <= allowed && p.Replicas < plans[best].Replicas {
			best = i
		}
	}
	return plans[best]
}

// plans replays all plans, and returns the replicas that the mean load needs.
func (r *Replay) plans() (out []Plan, mean float64) {
	n := len(r.Loads)
	busy, weights, want := make([]float32, n), make([]float32, n), make([]float32, n)
	sum := 0.0
	total := 0.0
	for i, l := range r.Loads {
		busy[i] = float32(r.Cost.Busy(l))
		weights[i] = float32(math.Exp2(-float64(n-1-i) * r.Seconds / halfLife))
		sum += float64(busy[i] * weights[i])
		total += float64(weights[i])
	}
	mean = max(sum/max(total, 1e-9)/r.Knee, 0.5)
	ofDay := highest(busy, r.steps(day))
	for _, window := range windows {
		ofWindow := highest(busy, r.steps(window))
		for _, reserve := range reserves {
			for i := range want {
				want[i] = max(ofWindow[i], reserve*ofDay[i])
			}
			ready := lowest(want, r.steps(r.Startup))
			for _, target := range targets {
				p := r.play(busy, weights, want, ready, target)
				p.Window = window
				if n > 0 {
					p.Reserve = float64(reserve * ofDay[n-1])
				}
				out = append(out, p)
			}
		}
	}
	return out, mean
}

// steps is the number of steps in some seconds, at least one.
func (r *Replay) steps(seconds float64) int { return max(1, int(math.Ceil(seconds/r.Seconds))) }

// play is what a target comes to, with the busy replicas that are provided for (want), and
// those of them that serve (ready).
func (r *Replay) play(busy, weights, want, ready []float32, target float32) Plan {
	least, most, perReplica := float32(r.Min), float32(r.Max), 1/target
	missed, load, replicas, total := 0.0, 0.0, 0.0, 0.0
	for i, w := range weights {
		n := max(1, ceil(ready[i]*perReplica, least, most))
		x := w * busy[i]
		missed += float64(x * r.Shares[classOf(busy[i]/n)])
		load += float64(x)
		replicas += float64(w * ceil(want[i]*perReplica, least, most))
		total += float64(w)
	}
	return Plan{Target: float64(target), Share: missed / max(load, 1e-9), Replicas: replicas / max(total, 1e-9)}
}

// ceil rounds up, within the bounds.
func ceil(x, least, most float32) float32 {
	if x >= most {
		return most
	}
	n := float32(int32(x))
	if n < x {
		n++
	}
	return max(n, least)
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
