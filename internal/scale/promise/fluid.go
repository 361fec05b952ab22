// SPDX-License-Identifier: Apache-2.0

package promise

import "math"

// fluid is the recorded load of a replay in busy replicas. Misses count by step, and plans
// are asked once per tick, which is some steps long: replicas take longer to start.
type fluid struct {
	*Replay
	busy  []float32 // of the steps
	loads []float32 // weight × busy
	load  float64   // sum of loads

	tick   int         // steps
	weight []float64   // of all steps before a tick
	missed [][]float32 // by replicas: of the loads of all steps before a tick

	want, ready     []float32 // buffers
	wanted, readies []run
}

const (
	// ticksPerStart is how many ticks a start-up should have, and mostTick the most steps of
	// a tick: fewer ticks make a replay cheaper.
	ticksPerStart, mostTick = 3, 4
	// exactly is the number of replicas up to which each number has misses of its own. Beyond,
	// numbers are 3 % apart at most. With both, 2,560 plans take 11 ms.
	exactly = 32
	// none is a share of missed requests so low that a lower target is not tried.
	none = 1e-5
	// roundingBits are the bits of a float32 that are cleared to leave 32 numbers an octave.
	roundingBits = 1<<18 - 1
	// burstSeconds is the time whose misses may be forgiven, and burstWindow the window of the
	// plan that finds it, in seconds.
	burstSeconds, burstWindow = 1800, 600
	// least keeps a quotient finite.
	least = 1e-9
)

func (r *Replay) fluid() *fluid {
	n := len(r.Loads)
	f := &fluid{Replay: r, busy: make([]float32, n), loads: make([]float32, n)}
	f.tick = min(max(1, int(math.Round(r.Startup/ticksPerStart/r.Seconds))), mostTick)
	// The last tick is a whole one.
	f.weight = make([]float64, 1, n/f.tick+2)
	sum, keep := 0.0, math.Exp2(-r.Seconds/halfLife)
	w := math.Pow(keep, float64(n-1))
	for i, l := range r.Loads {
		if l.isMissing() { // it weighs nothing, and the load of before goes on
			f.busy[i] = f.busy[max(0, i-1)]
		} else {
			f.busy[i] = float32(r.Cost.Busy(l))
			f.loads[i] = float32(w) * f.busy[i]
			f.load += float64(f.loads[i])
			sum += w
		}
		if f.ends(i) {
			f.weight = append(f.weight, sum)
		}
		w /= keep
	}
	f.want, f.ready = make([]float32, f.ticks()), make([]float32, f.ticks())
	f.forgive()
	return f
}

// forgive leaves the misses of the worst half hour out, if they are few beside the budget: no plan keeps replicas for
// hours because the load jumped once. How often that may happen is for [Pace] to say.
func (f *fluid) forgive() {
	if f.Forgiven <= 0 || f.doubt() > 0 {
		return
	}
	ready := lowest(highest(f.level(60), f.in(burstWindow)), f.in(f.Startup))
	n := f.in(burstSeconds)
	var worst float32
	from, sum := 0, float32(0)
	missed := make([]float32, len(ready))
	for i, x := range ready {
		sums := f.missedBy(f.rounded(x / float32(f.First)))
		missed[i] = sums[i+1] - sums[i]
		if sum += missed[i]; i >= n {
			sum -= missed[i-n]
		}
		if sum > worst {
			worst, from = sum, max(0, i+1-n)
		}
	}
	first := len(f.Loads) - (len(ready)-from)*f.tick // the first step of the window
	once, of := 0.0, 0.0
	for k, busy := range f.busy {
		of += float64(busy)
		if k >= first && k < first+n*f.tick && !f.Loads[k].isMissing() {
			tick := from + (k-first)/f.tick
			once += float64(busy * f.Shares[classOf(busy/f.rounded(ready[min(tick, len(ready)-1)]/float32(f.First)))])
		}
	}
	if once > f.Forgiven*of {
		return
	}
	clear(f.loads[max(0, first):min(len(f.loads), first+n*f.tick)])
	clear(f.missed)
}

// ends reports whether a step is the last one of a tick.
func (f *fluid) ends(step int) bool { return (len(f.Loads)-1-step)%f.tick == 0 }

func (f *fluid) ticks() int { return len(f.weight) - 1 }

// in is a number of ticks, at least one.
func (f *fluid) in(seconds float64) int {
	return max(1, int(math.Round(seconds/f.Seconds/float64(f.tick))))
}

// plans replays all plans, and returns the replicas that the mean load needs.
func (r *Replay) plans() (out []Plan, mean float64) {
	f := r.fluid()
	out = make([]Plan, 0, len(averages)*len(windows)*len(reserves)*len(targets))
	for _, average := range averages {
		out = f.plansOf(out, average)
	}
	return out, max(f.load/max(f.weight[f.ticks()], least)/r.Cost.Knee, 0.5)
}

// plansOf appends the plans of an average.
func (f *fluid) plansOf(out []Plan, average float64) []Plan {
	level := f.level(average)
	ofDay := highest(level, f.in(day))
	readyOfDay := lowest(ofDay, f.in(f.Startup))
	// A short record has seen neither the load come back nor what it can rise to: the
	// shorter it is, the closer a plan is to the one without a record, or the safer.
	doubt := f.doubt()
	shortest, fullest := firstWindow(f.Startup)*doubt, float32(1-(1-f.First/firstRoom(f.Startup))*doubt)
	for _, window := range windows {
		if window < shortest {
			continue
		}
		ofWindow := highest(level, f.in(window))
		readyOfWindow := lowest(ofWindow, f.in(f.Startup))
		for _, reserve := range reserves {
			for i := range f.want {
				f.want[i], f.ready[i] = max(ofWindow[i], reserve*ofDay[i]), max(readyOfWindow[i], reserve*readyOfDay[i])
			}
			f.wanted, f.readies = runs(f.wanted[:0], f.want), runs(f.readies[:0], f.ready)
			plan := Plan{Average: average, Window: window}
			if n := len(ofDay); n > 0 {
				plan.Reserve = float64(reserve * ofDay[n-1])
			}
			out = f.plansFor(out, plan, fullest)
		}
	}
	return out
}

// plansFor appends a plan with all targets up to fullest, or else with the lowest one.
func (f *fluid) plansFor(out []Plan, plan Plan, fullest float32) []Plan {
	for i, target := range targets {
		if target > fullest && i < len(targets)-1 {
			continue
		}
		plan.Target, plan.Share, plan.Replicas = float64(target), f.share(f.readies, 1/target), f.replicas(f.wanted, 1/target)
		if out = append(out, plan); plan.Share < none {
			break
		}
	}
	return out
}

// level returns the means of some seconds at the end of each tick, or the highest step of
// each tick. The load before the record is not known: the highest one of the first start-up
// stands in, or the beginning would be a jump that no plan can follow.
func (f *fluid) level(average float64) []float32 {
	n := max(1, int(average/f.Seconds))
	out, sum, high := make([]float32, 0, f.ticks()), 0.0, float32(0)
	for i, x := range f.busy {
		if sum += float64(x); i >= n {
			sum -= float64(f.busy[i-n])
		}
		if mean := float32(max(0, sum) / float64(min(i+1, n))); mean > high {
			high = mean
		}
		if f.ends(i) {
			out, high = append(out, roundUp(high)), 0
		}
	}
	first := out[:min(f.in(f.Startup), len(out))]
	for _, x := range first {
		high = max(high, x)
	}
	for i := range first {
		first[i] = high
	}
	return out
}

// roundUp rounds to 32 numbers an octave, so that neighbours are often equal.
func roundUp(x float32) float32 {
	return math.Float32frombits((math.Float32bits(x) + roundingBits) &^ roundingBits)
}

// missedBy returns the weighed load that misses a limit before each tick, with a number of
// replicas. Above exactly, it is that of fewer replicas: 32 numbers an octave.
func (f *fluid) missedBy(replicas float32) []float32 {
	replicas = max(1, replicas)
	i := int(replicas)
	if replicas > exactly {
		b := math.Float32bits(replicas) &^ roundingBits
		replicas, i = math.Float32frombits(b), exactly+int((b-math.Float32bits(exactly))/(roundingBits+1))
	}
	for len(f.missed) <= i {
		f.missed = append(f.missed, nil)
	}
	if f.missed[i] == nil {
		sums, sum, each := make([]float32, 1, f.ticks()+1), 0.0, 1/replicas
		for k, busy := range f.busy {
			if sum += float64(f.loads[k] * f.Shares[classOf(busy*each)]); f.ends(k) {
				sums = append(sums, float32(sum))
			}
		}
		f.missed[i] = sums
	}
	return f.missed[i]
}

// run is a value that a series keeps up to a tick.
type run struct {
	value float32
	end   int
}

// runs appends the runs of a series.
func runs(out []run, x []float32) []run {
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
func (f *fluid) share(ready []run, perBusy float32) float64 {
	missed, from := 0.0, 0
	for _, x := range ready {
		sums := f.missedBy(f.rounded(x.value * perBusy))
		missed += float64(sums[x.end] - sums[from])
		from = x.end
	}
	return missed / max(f.load, least)
}

// replicas is the mean number of replicas where these busy replicas are wanted, times
// perBusy.
func (f *fluid) replicas(wanted []run, perBusy float32) float64 {
	sum, before := 0.0, 0
	for _, x := range wanted {
		sum += float64(f.rounded(x.value*perBusy)) * (f.weight[x.end] - f.weight[before])
		before = x.end
	}
	return sum / max(f.weight[f.ticks()], least)
}

// rounded rounds replicas up, within the bounds.
func (r *Replay) rounded(x float32) float32 {
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
