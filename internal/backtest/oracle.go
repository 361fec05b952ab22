// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// fixed keeps a number of replicas.
type fixed struct{ n int }

func (f fixed) decide(*cluster, int) (int, []string) { return f.n, nil }

// oracle knows the load that comes and how long each pod's start will take. A
// replica is created at the last moment at which it is ready when the load asks
// for it, and is kept through a pause that is shorter than another's start.
type oracle struct {
	plan []int // replicas that shall serve, by bin of needSeconds
	luck []luck
}

// newOracle plans for replicas that are loaded to a share of what their limits
// let them take, with the load averaged over some seconds. A share above 1 and
// a long average save replicas and miss limits.
func newOracle(need []float64, share float64, over, minimum, maximum int) *oracle {
	o := &oracle{plan: make([]int, len(need))}
	reach := over / needSeconds / 2
	for i := range need {
		part := need[max(0, i-reach):min(len(need), i+reach+1)]
		sum := 0.0
		for _, x := range part {
			sum += x
		}
		o.plan[i] = min(max(ceil(sum/float64(len(part))/share), minimum), maximum)
	}
	return o
}

// at is what the plan wants to serve at a moment; the last bin goes on.
func (o *oracle) at(second float64) int {
	return o.plan[min(max(0, int(second/needSeconds)), len(o.plan)-1)]
}

// most is the most that the plan wants from one moment to before another.
func (o *oracle) most(from, to float64) int {
	most := o.at(from)
	for s := (math.Floor(from/needSeconds) + 1) * needSeconds; s < to; s += needSeconds {
		most = max(most, o.at(s))
	}
	return most
}

func (o *oracle) decide(c *cluster, now int) (int, []string) {
	t := float64(now)
	live, horizon := 0, t+1
	var serves []string
	for _, p := range c.pods {
		switch {
		case p.phase == serving:
			live++
			serves = append(serves, p.name)
		case p.phase < draining: // it was created for something
			live++
			_, _, late := o.start(c, p.id).from(p.created+1, c.full)
			horizon = max(horizon, late)
		}
	}
	if more := o.due(c, t, live); more > 0 {
		return live + more, nil
	}
	bound, _, ready := o.start(c, c.made).from(t, c.full)
	return min(live, o.most(t, max(horizon, t+ready-bound))), serves
}

// due is how many pods have to be created now: one second later the last of
// them would be ready too late for the plan.
func (o *oracle) due(c *cluster, now float64, live int) (more int) {
	last := o.most(now, now+o.farthest(c))
	for k := 1; live+k <= last; k++ {
		l := o.start(c, c.made+k-1)
		_, _, ready := l.from(now, c.full)
		_, _, late := l.from(now+1, c.full)
		if late > ready && o.most(ready, late) >= live+k {
			more = k
		}
	}
	return more
}

// farthest is further ahead than any start takes, in seconds.
func (o *oracle) farthest(c *cluster) float64 {
	far := 20*c.startup.Median + 20*c.startup.NodeMedian
	for _, f := range c.full {
		far = max(far, f.to-float64(c.now)+20*c.startup.Median)
	}
	return far
}

// start is a pod's luck.
func (o *oracle) start(c *cluster, id int) luck {
	for len(o.luck) <= id {
		o.luck = append(o.luck, c.startup.draw(c.seed, len(o.luck)))
	}
	return o.luck[id]
}

// reactive knows what each request costs, and the load up to now: what an
// autoscaler could do that had learned everything but the future. It follows
// the need of the last bins at once upward, and downward as their most.
type reactive struct {
	need     []float64
	headroom float64
	window   int // seconds
	min, max int
}

func (r *reactive) decide(_ *cluster, now int) (int, []string) {
	last := min(now/needSeconds-1, len(r.need)-1) // the last bin that is over
	if last < 0 {
		return -1, nil
	}
	want := 0
	for i := max(0, last-r.window/needSeconds); i <= last; i++ {
		want = max(want, ceil(r.need[i]/r.headroom))
	}
	return min(max(want, r.min), r.max), nil
}

// ceil is a number of replicas that is enough.
func ceil(x float64) int { return int(math.Ceil(min(x, 1e6))) }
