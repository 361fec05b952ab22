// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// Oracle returns a schedule that knows the future load and how long each start takes. Each
// replica gets this share of its capacity, for the load averaged over some seconds. A share
// above 1 and a long average save replicas and miss limits.
func Oracle(share float64, average int) Entry {
	return Entry{
		Name: fmt.Sprintf("oracle %g %ds", share, average), Family: OracleSchedule,
		New: func(r *Replay) (service.Autoscaler, error) {
			return newOracle(r, share, average), nil
		},
	}
}

// Oracles returns schedules from cheap to safe. GPU-hours are compared with the cheapest of
// them that meets an objective. All comparisons use all of them, so that a policy costs the same
// multiple of the oracle's GPU-hours whatever it is compared with.
func Oracles() (out []Entry) {
	for _, average := range []int{service.NeedSeconds, 120, 600} {
		for _, share := range []float64{2.5, 2, 1.7, 1.5, 1.35, 1.25, 1.15, 1.07, 1, 0.93, 0.87, 0.8, 0.73, 0.67, 0.6, 0.5, 0.4, 0.3} {
			out = append(out, Oracle(share, average))
		}
	}
	return out
}

// oracle creates each replica at the last moment at which it becomes ready in time. It
// keeps a replica through a pause that is shorter than the start of a new one.
type oracle struct {
	plan   []int // ready replicas, per bin of service.NeedSeconds
	delays []service.StartDelay
}

func newOracle(r *Replay, share float64, average int) *oracle {
	o := &oracle{plan: make([]int, len(r.Need))}
	reach := average / service.NeedSeconds / 2
	for i := range r.Need {
		bins := r.Need[max(0, i-reach):min(len(r.Need), i+reach+1)]
		sum := 0.0
		for _, x := range bins {
			sum += x
		}
		o.plan[i] = min(max(Ceil(sum/float64(len(bins))/share), r.Min), r.Max)
	}
	return o
}

// planned returns the planned replicas at a second. The last bin never ends.
func (o *oracle) planned(second float64) int {
	return o.plan[min(max(0, int(second/service.NeedSeconds)), len(o.plan)-1)]
}

// most returns the most planned replicas in the interval [from, to).
func (o *oracle) most(from, to float64) int {
	most := o.planned(from)
	for s := (math.Floor(from/service.NeedSeconds) + 1) * service.NeedSeconds; s < to; s += service.NeedSeconds {
		most = max(most, o.planned(s))
	}
	return most
}

// Decide implements service.Autoscaler.
func (o *oracle) Decide(d *service.Deployment, now int) (int, []string) {
	t := float64(now)
	live, horizon := 0, t+1
	var serving []string
	for _, p := range d.Pods() {
		switch {
		case p.Phase == service.Serving:
			live++
			serving = append(serving, p.Name)
		case p.Phase < service.Draining: // a starting pod is kept: it was created for a later need
			live++
			horizon = max(horizon, d.StartTimes(o.delay(d, p.ID), p.Created+1).Ready)
		}
	}
	if n := o.due(d, t, live); n > 0 {
		return live + n, nil
	}
	next := d.StartTimes(o.delay(d, d.Created()), t)
	return min(live, o.most(t, max(horizon, t+next.Ready-next.Bound))), serving
}

// due returns the number of pods to create now. If they were created a second later, the
// last of them would be ready too late.
func (o *oracle) due(d *service.Deployment, now float64, live int) (n int) {
	last := o.most(now, now+d.LongestStart())
	for k := 1; live+k <= last; k++ {
		delay := o.delay(d, d.Created()+k-1)
		ready, late := d.StartTimes(delay, now).Ready, d.StartTimes(delay, now+1).Ready
		if late > ready && o.most(ready, late) >= live+k {
			n = k
		}
	}
	return n
}

// delay returns the delays of a pod's start. They are cached, because drawing them is slow.
func (o *oracle) delay(d *service.Deployment, id int) service.StartDelay {
	for len(o.delays) <= id {
		o.delays = append(o.delays, d.StartDelay(len(o.delays)))
	}
	return o.delays[id]
}
