// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// mpcPeers is a model-predictive controller after CloudAI's MPC v3 of Planner Gym
// (gyms/planner-gym/docs/cloudai_mpc_v3.md, October 2026), by its description. It knows the
// engine's formula and the exact time of a start, as the published one does.
func mpcPeers() []named {
	return []named{{name: "cloudai-mpc", period: mpcInterval, pushed: true, rates: true, rule: func(r *Replay) rule {
		return &mpc{min: r.Min, max: r.Max, startup: int(math.Ceil(r.Startup)), bias: 1, rho: mpcLeastRho, output: 128}
	}}}
}

// The constants of the published entry.
const (
	mpcInterval    = 5    // seconds between decisions, and of a step of the plan
	mpcHorizon     = 5    // steps after a start
	mpcKVShare     = 0.9  // of the cache that a saturated worker fills
	mpcMostBatch   = 256  // sequences
	mpcUtilisation = 0.75 // highest after scaling down
	mpcQueue       = 6    // waiting requests from which the backlog must be cleared
	mpcLeastRho    = 0.1  // good requests per GPU-second
	mpcRhoWindow   = 60   // seconds
	mpcShapeWindow = 60   // seconds, of the mean tokens
	mpcDeadband    = 0.05 // least gain of a change, as a share
	mpcWorse       = 4    // worse candidates in a row that end the search
)

// mpc simulates its queue with each number of replicas over a start and a horizon, and takes
// the one with the most good requests less rho times the GPU-seconds, where rho is what a
// GPU-second has served so far.
type mpc struct {
	min, max int
	startup  int // seconds

	arrivals, promptTokens, firstTokens, outputTokens, completed history

	forecast       arrivalForecast
	prompt, output float64 // mean tokens
	bias           float64 // measured ÷ modelled rate of a saturated worker
	rho            float64
	good, gpu      float64 // moving means

	orders       []int // seconds at which replicas that start are ready, in order
	smallEnough  int   // decisions in a row at which one replica fewer sufficed
	lastQueue    float64
	lastInFlight float64
	lastReady    int
	model        *service.Model
}

func (c *mpc) watch(f *fleet) {
	c.arrivals.add(f.now, f.arrivals)
	c.promptTokens.add(f.now, f.promptTokens)
	c.firstTokens.add(f.now, f.firstTokens)
	c.outputTokens.add(f.now, f.outputTokens)
	c.completed.add(f.now, f.completed)
}

func (c *mpc) decide(f *fleet) int {
	c.model = f.model
	c.reconcile(f)
	rate := c.arrivals.sum(f.now, mpcInterval) / mpcInterval
	c.measureTokens(f)
	c.measureBias(f, rate)
	c.measureRho(f, rate)
	c.forecast.add(rate*mpcInterval, max(1, c.startup))
	mean, high := c.forecast.at(c.steps())

	if len(c.orders) == 0 && f.replicas > c.min && c.suffices(f, high, f.replicas-1) {
		c.smallEnough++
	} else {
		c.smallEnough = 0
	}
	best := max(c.cheapest(f, mean, high), c.backlogFloor(f, mean), c.min)
	best = min(best, c.max)
	if best != f.replicas {
		c.smallEnough = 0
	}
	for k := f.replicas; k < best; k++ {
		c.orders = append(c.orders, f.now+c.startup)
	}
	c.orders = c.orders[:max(0, len(c.orders)-max(0, f.replicas-best))]
	return best
}

func (c *mpc) startSteps() int { return (c.startup + mpcInterval - 1) / mpcInterval }
func (c *mpc) steps() int      { return c.startSteps() + mpcHorizon }

// reconcile makes the orders as many as the replicas that start: those that are due are
// ready, the newest are the ones that were cancelled.
func (c *mpc) reconcile(f *fleet) {
	for len(c.orders) > f.starting && c.orders[0] <= f.now {
		c.orders = c.orders[1:]
	}
	c.orders = c.orders[:min(len(c.orders), f.starting)]
	for len(c.orders) < f.starting {
		c.orders = append(c.orders, f.now+c.startup)
	}
}

func (c *mpc) measureTokens(f *fleet) {
	const share = float64(mpcInterval) / mpcShapeWindow
	if n := c.firstTokens.sum(f.now, mpcInterval); n > 0 {
		prompt := c.promptTokens.sum(f.now, mpcInterval) / n
		if c.prompt == 0 {
			c.prompt = prompt
		}
		c.prompt += share * (prompt - c.prompt)
	}
	if n := c.completed.sum(f.now, mpcInterval); n > 0 {
		c.output += share * (c.outputTokens.sum(f.now, mpcInterval)/n - c.output)
	}
}

// measureBias compares the rate of saturated workers with the modelled one.
func (c *mpc) measureBias(f *fleet, rate float64) {
	inFlight := f.running + f.waiting
	if c.lastReady > 0 && c.lastReady == f.ready() && c.lastQueue > mpcQueue && f.waiting > mpcQueue {
		if done := rate*mpcInterval - (inFlight - c.lastInFlight); done > 0 {
			ratio := done / mpcInterval / float64(f.ready()) / (c.workerRate() / c.bias)
			c.bias += 0.1 * (min(4, max(0.25, ratio)) - c.bias)
		}
	}
	c.lastInFlight, c.lastQueue, c.lastReady = inFlight, f.waiting, f.ready()
}

// measureRho estimates the good requests per GPU-second of the last minute by the model.
func (c *mpc) measureRho(f *fleet, rate float64) {
	ready := math.Max(1, float64(f.ready()))
	capacity := ready * c.workerRate()
	served := min(f.waiting+rate*mpcInterval, capacity*mpcInterval)
	good := served * c.goodShare(f.waiting/capacity+c.prefillSeconds(), c.tokenSeconds(rate/ready, f.waiting > 0 || rate >= capacity))
	gpu := math.Max(1, float64(f.replicas)) * float64(f.model.GPUs) * mpcInterval
	if c.gpu == 0 {
		c.good, c.gpu = good, gpu
	}
	const share = float64(mpcInterval) / mpcRhoWindow
	c.good += share * (good - c.good)
	c.gpu += share * (gpu - c.gpu)
	c.rho = max(mpcLeastRho, c.good/c.gpu)
}

// cheapest tries replicas from the present number outwards. Fewer are allowed once they have
// sufficed for the time of a start.
func (c *mpc) cheapest(f *fleet, mean, high []float64) int {
	best, worse := f.replicas, 0
	lowest, present := math.Inf(1), math.Inf(1)
	for _, n := range c.candidates(f.replicas) {
		if n < f.replicas && (c.smallEnough < max(1, c.startSteps()) || !c.suffices(f, high, n)) {
			continue
		}
		cost := c.cost(f, mean, n)
		if n == f.replicas {
			present = cost
		}
		if worse++; cost < lowest {
			lowest, best, worse = cost, n, 0
		}
		if worse >= mpcWorse {
			break
		}
	}
	if best != f.replicas && present-lowest < mpcDeadband*math.Max(1e-6, math.Abs(present)) {
		return f.replicas
	}
	return best
}

func (c *mpc) candidates(n int) (out []int) {
	for delta := 0; delta <= c.max; delta++ {
		if n+delta <= c.max {
			out = append(out, n+delta)
		}
		if delta > 0 && n-delta >= c.min {
			out = append(out, n-delta)
		}
	}
	return out
}

// cost is the negative of the good requests of the plan less rho times its GPU-seconds.
func (c *mpc) cost(f *fleet, rates []float64, n int) (cost float64) {
	c.plan(f, rates, n, func(s *mpcStep) bool {
		cost -= s.served * c.goodShare(s.servedWait, c.tokenSeconds(s.rate/s.active, s.saturated))
		cost += c.rho * float64(n) * float64(f.model.GPUs) * mpcInterval
		return true
	})
	return cost
}

// suffices reports whether n replicas keep the utilisation and half of the limit of the first
// token at each step.
func (c *mpc) suffices(f *fleet, rates []float64, n int) (ok bool) {
	ok = true
	c.plan(f, rates, n, func(s *mpcStep) bool {
		ok = s.rate <= mpcUtilisation*s.capacity && s.wait < f.model.TTFTLimit/2
		return ok
	})
	return ok
}

// backlogFloor is the fewest replicas that clear a backlog within the plan; while replicas
// start, not fewer than there are.
func (c *mpc) backlogFloor(f *fleet, rates []float64) int {
	if f.waiting <= mpcQueue {
		return c.min
	}
	first := c.min
	if len(c.orders) > 0 {
		first = f.replicas
	}
	for n := first; n < c.max; n++ {
		rest := 0.0
		c.plan(f, rates, n, func(s *mpcStep) bool { rest = s.queue; return true })
		if rest <= 0.5 {
			return n
		}
	}
	return c.max
}

// mpcStep is a step of the plan.
type mpcStep struct {
	rate, active, capacity float64 // requests/s; ready replicas; their requests/s
	served, queue          float64 // requests in the step; waiting at its end
	servedWait, wait       float64 // seconds to the first token: of those served, and at the end
	saturated              bool
}

// plan simulates the queue with n replicas; it ends when next returns false.
func (c *mpc) plan(f *fleet, rates []float64, n int, next func(*mpcStep) bool) {
	ready, orders := f.ready(), c.orders
	if cancelled := f.replicas - n; cancelled > 0 {
		kept := max(0, len(orders)-cancelled)
		ready -= cancelled - (len(orders) - kept)
		orders = orders[:kept]
	}
	queue, worker, prefill := f.waiting, c.workerRate(), c.prefillSeconds()
	for k := range c.steps() {
		active := ready
		for _, at := range orders {
			if at <= f.now+k*mpcInterval {
				active++
			}
		}
		if k >= c.startSteps() {
			active += max(0, n-f.replicas)
		}
		s := mpcStep{rate: rates[k], active: float64(max(1, active))}
		s.capacity = s.active * worker
		s.served = min(queue+s.rate*mpcInterval, s.capacity*mpcInterval)
		s.servedWait = queue/s.capacity + prefill
		s.saturated = queue > 0.5 || s.rate >= s.capacity
		queue = max(0, queue+(s.rate-s.capacity)*mpcInterval)
		s.queue, s.wait = queue, queue/s.capacity+prefill
		if !next(&s) {
			return
		}
	}
}

// goodShare is a smooth indicator that both limits are met.
func (c *mpc) goodShare(first, token float64) float64 {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	return sigmoid((c.model.TTFTLimit-first)/(0.1*c.model.TTFTLimit)) * sigmoid((c.model.ITLLimit-token)/(0.1*c.model.ITLLimit))
}

func (c *mpc) prefillSeconds() float64 {
	return math.Max(c.model.StepBase, c.model.Fresh(c.prompt)/c.model.Prefill)
}

// iteration is the time of one without prefill.
func (c *mpc) iteration(batch float64) float64 {
	return c.model.Iteration(0, batch, batch*c.model.KV(c.prompt, c.output))
}

// mostBatch is the batch of a saturated worker.
func (c *mpc) mostBatch() float64 {
	return max(1, min(mpcKVShare*c.model.KVTokens/math.Max(1, c.prompt+c.output), mpcMostBatch, float64(c.model.MaxSeqs)))
}

// workerRate is the requests/s of a saturated worker.
func (c *mpc) workerRate() float64 {
	b := c.mostBatch()
	return c.bias / (c.prefillSeconds() + c.output*c.iteration(b)/b)
}

// tokenSeconds is the time between tokens at a rate per worker. A saturated worker decodes
// behind a prefill each time.
func (c *mpc) tokenSeconds(rate float64, saturated bool) float64 {
	if saturated {
		return c.prefillSeconds() + c.iteration(c.mostBatch())
	}
	batch := 1.0
	for range 30 {
		next := min(c.mostBatch(), max(1, rate*(c.prefillSeconds()+c.output*c.iteration(batch))))
		if math.Abs(next-batch) < 0.05 {
			break
		}
		batch = next
	}
	return c.iteration(batch) / (1 - min(0.95, rate*c.prefillSeconds()))
}

// arrivalForecast is the arrival rate of the last bins: a moving mean that a step of the load
// resets, and a trend if it is significant.
type arrivalForecast struct {
	level float64
	bins  []float64 // rates, the newest last; since the last step
	known bool
	count float64 // of the open bin
	polls int     // of the open bin
	share float64 // of a new bin in the level
}

// The constants of the published forecaster.
const (
	binPolls   = 3   // intervals
	trendBins  = 8   // two minutes
	resetSigma = 2.5 // standard deviations of a Poisson count
	resetLeast = 5   // requests
	highSigma  = 0.84
)

// add adds the arrivals of an interval; the level follows within the time of a start.
func (a *arrivalForecast) add(count float64, startup int) {
	const binSeconds = binPolls * mpcInterval
	a.share = min(1, binSeconds/math.Max(binSeconds, float64(startup)))
	a.count += count
	if a.polls++; a.polls < binPolls {
		return
	}
	rate, expected := a.count/binSeconds, a.level*binSeconds
	switch {
	case !a.known:
		a.level, a.known = rate, true
	case math.Abs(a.count-expected) > max(resetSigma*math.Sqrt(max(expected, 1)), resetLeast):
		a.level, a.bins = rate, nil
	default:
		a.level += a.share * (rate - a.level)
	}
	a.bins = append(a.bins, rate)
	a.bins = a.bins[max(0, len(a.bins)-trendBins):]
	a.count, a.polls = 0, 0
}

// at returns the mean and the 80th percentile of the rate for the steps of a plan.
func (a *arrivalForecast) at(steps int) (mean, high []float64) {
	const binSeconds = binPolls * mpcInterval
	level := a.level
	if !a.known && a.polls > 0 {
		level = a.count / float64(a.polls*mpcInterval)
	}
	slope := a.slope()
	spread := highSigma * math.Sqrt(level*(a.share/((2-a.share)*binSeconds)+1/float64(steps*mpcInterval)))
	for k := range steps {
		m := max(0, level+slope*float64((k+1)*mpcInterval))
		if level > 0 {
			m = min(max(m, level/2), 2*level)
		}
		mean, high = append(mean, m), append(high, m+spread)
	}
	return mean, high
}

// slope is the trend in requests/s², or 0 within two standard errors.
func (a *arrivalForecast) slope() float64 {
	n := float64(len(a.bins))
	if n < 4 {
		return 0
	}
	meanX, meanY := (n-1)/2*binPolls*mpcInterval, 0.0
	for _, y := range a.bins {
		meanY += y / n
	}
	xx, xy, rest := 0.0, 0.0, 0.0
	for i, y := range a.bins {
		dx := float64(i*binPolls*mpcInterval) - meanX
		xx += dx * dx
		xy += dx * (y - meanY)
	}
	slope := xy / xx
	for i, y := range a.bins {
		e := y - meanY - slope*(float64(i*binPolls*mpcInterval)-meanX)
		rest += e * e
	}
	if math.Abs(slope) > 2*math.Sqrt(max(rest, 1e-12)/(n-2)/xx) {
		return slope
	}
	return 0
}
