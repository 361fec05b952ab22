// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// ours is scale.Decide, fed as the controller feeds it: once a second, with
// readings of one second ago.
type ours struct {
	policy  scale.Policy
	sources []source
	counted []bool        // of each source: the requests that come are
	given   time.Duration // start-up that the user declared

	state scale.State
	obs   scale.Observation
	cells []scale.Reading
	paces []scale.Pace
	came  []scale.Reading
	zero  time.Time

	rules  map[scale.Rule]int // how often each had the last word
	record func(*scale.Decision)
}

const scrapeDelay = 1 // seconds

func newOurs(compiled policy.Compiled, minimum, maximum int) (*ours, error) {
	o := &ours{policy: compiled.Policy, given: compiled.Policy.Startup, zero: time.Unix(0, 0), rules: map[scale.Rule]int{}}
	o.policy.Min, o.policy.Max = int32(minimum), int32(maximum)
	for i, s := range compiled.Sources {
		src, err := sourceOf(s)
		if err != nil {
			return nil, fmt.Errorf("spec.signals: %s: %w", compiled.Policy.Signals[i].Name, err)
		}
		o.sources, o.counted = append(o.sources, src), append(o.counted, s.Arrived != nil || s.Completed != nil)
	}
	return o, nil
}

func (o *ours) decide(c *cluster, now int) (int, []string) {
	o.policy.GPUsPerReplica = c.m.GPUs
	o.policy.Startup = o.given
	if o.given == 0 {
		o.policy.Startup = learned(c.starts)
	}
	o.look(c, now)
	d, state := scale.Decide(o.policy, o.obs, o.state, o.time(now))
	o.state = state
	o.rules[d.Rule]++
	if o.record != nil {
		o.record(&d)
	}
	if !d.Changes() {
		return -1, nil
	}
	return int(d.Replicas), d.Victims
}

func (o *ours) time(second int) time.Time { return o.zero.Add(time.Duration(second) * time.Second) }

// look makes the observation.
func (o *ours) look(c *cluster, now int) {
	s := c.at(now - scrapeDelay)
	at := o.time(now - scrapeDelay)
	o.obs.Replicas = int32(c.spec)
	o.obs.Pods = o.obs.Pods[:0]
	n := len(o.sources)
	if want := n * len(c.pods); len(o.cells) < want {
		o.cells, o.paces, o.came = make([]scale.Reading, 2*want), make([]scale.Pace, 2*want), make([]scale.Reading, 2*want)
	}
	for i, p := range c.pods {
		cells, paces, came := o.cells[i*n:(i+1)*n], o.paces[i*n:(i+1)*n], o.came[i*n:(i+1)*n]
		x := s.find(p.id)
		for k, src := range o.sources {
			v, ok := src.get(x)
			cells[k] = scale.Reading{Value: v, At: at, OK: ok}
			if o.policy.Signals[k].Learned() {
				paces[k] = x.pace(at)
			}
			if o.counted[k] {
				came[k] = x.came(at)
			}
		}
		o.obs.Pods = append(o.obs.Pods, scale.Replica{
			Name: p.name, Phase: phaseOf(p), Since: o.time(int(p.since)), Readings: cells, Paces: paces, Arrivals: came,
		})
		if ph := p.phase; ph == pulling || ph == loading {
			o.obs.Pods[i].Since = o.time(int(p.bound))
		}
	}
}

func phaseOf(p *pod) scale.Phase {
	switch p.phase {
	case waiting:
		return scale.Unschedulable
	case pulling, loading:
		return scale.Starting
	case serving:
		return scale.Serving
	}
	return scale.Terminating
}

// learned is the 95th percentile of the last starts, as the controller learns it.
func learned(starts []float64) time.Duration {
	if len(starts) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(starts))
	i := max(0, int(math.Ceil(0.95*float64(len(s))))-1)
	return time.Duration(math.Ceil(s[i])) * time.Second
}
