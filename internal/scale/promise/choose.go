// SPDX-License-Identifier: Apache-2.0

package promise

// Load is what a workload is asked for per second.
type Load struct {
	Prompt, Output float32 // tokens
	// Cache is how many full KV caches are read: those of all iterations, as each reads what its
	// sequences hold. 0: none, or not known.
	Cache float32
}

// Plan says how many replicas a load gets: those that are loaded to Target by the highest load within Window, as means
// over Average, and by no less than Reserve. The zero Plan is none.
type Plan struct {
	Target  float64 `json:"target"`  // busy share of a replica, above 0
	Average float64 `json:"average"` // seconds; a step at least
	Window  float64 `json:"window"`  // seconds
	Reserve float64 `json:"reserve"` // busy replicas
	// AtOnce is the busy share to which the load of the last minute may fill replicas, by the
	// misses that were measured; 0: not known.
	AtOnce float64 `json:"atOnce,omitempty"`

	// What the plan came to in the replay that chose it.
	Share    float64 `json:"share"`    // of the requests that missed a limit
	Replicas float64 `json:"replicas"` // mean, starting ones included
	// Short is set if it missed more than was allowed, because the load jumps faster than replicas start. Needs is the
	// mean replicas of the cheapest plan that would have kept the objective; 0: none would.
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
	First    float64 // busy share of a replica without a record
	Startup  float64 // seconds until a replica serves
	Min, Max int     // replicas

	// Price is what it is worth to avoid as many misses as the objective allows: replicas, as a multiple of those that
	// the mean load needs. Misses that cost more are not avoided, because the load jumps faster than replicas start.
	Price float64

	// Forgiven is what may be missed once, in half an hour, without a change of the plan: a
	// share of the requests of the record. 0: nothing.
	Forgiven float64
}

// The plans: targets, averages and windows in seconds, and reserves as shares of the highest load of a day. Load that
// jumps up and down faster than replicas start costs less as a lower target of a longer average.
//
// Targets go from mostBusy down, each 12 to 20 % below the one before. Without averages, and with a record in minutes, 99
// and 98 % were kept in 10 and 12 of 16 cells at 1.42 and 1.44 × the oracle's GPU-hours, with them in 10 and 14 at 1.37 and
// 1.39 ×. Windows go from a minute to the time that the record has beyond a day (keptSteps).
var (
	targets  = [...]float32{0.85, 0.75, 0.66, 0.58, 0.51, 0.45, 0.39, 0.34, 0.3, 0.26, 0.22, 0.18, 0.15, 0.12, 0.1, 0.08}
	averages = [...]float64{StepSeconds, 60, 300, 900}
	windows  = [...]float64{60, 180, 300, 600, 900, 1800, 3600, 7200}
	reserves = [...]float32{0, 0.3, 0.5, 0.7, 1}
)

const (
	// halfLife is the age at which a step counts half, in seconds. With 4 h, jumps were forgotten before they came again:
	// six days kept 99 % in 6 instead of 9 of 12 cells, two hours in 61 instead of 64 of 72, for 3 and 4 % fewer
	// GPU-hours. With 24 h, six days kept it in 7.
	halfLife = 12 * 3600
	// trusted is how long a record is that chooses any window, in seconds.
	trusted = 4 * 3600
	// leastTrust is what the price counts without a record.
	leastTrust = 0.2
	// day is the time whose highest load a reserve is a share of, in seconds.
	day = 24 * 3600
)

// Choose returns the plan with the fewest replicas of those that miss at most the allowed share of the requests, above
// 0. If avoiding that many misses costs more than Price, it returns the plan that avoids those that are worth it.
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

// doubt is 1 without a record, and 0 from trusted seconds on.
func (r *Replay) doubt() float64 { return max(0, 1-float64(known(r.Loads))*r.Seconds/trusted) }
