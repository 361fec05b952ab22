// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
)

// world is what the engine is shown: the story so far.
type world struct {
	policy  scale.Policy
	state   scale.State
	spec    int32
	pods    []pod // oldest first
	groups  map[scale.Phase]*group
	total   *group // of one: the workload as a whole
	came    *group // of one: what comes to each pod that serves
	paces   []pace // of the pods that serve, oldest first; the last stands for the rest
	age     time.Duration
	frozen  time.Time // when the readings were measured, if no longer
	stopped bool
	made    int
}

type pod struct {
	name  string
	phase scale.Phase
	since time.Time
}

// zero is the timeline's beginning. What is there at the first line has been
// there for a while.
var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const before = time.Hour

func newWorld(p scale.Policy) *world {
	return &world{policy: p, spec: -1, age: time.Second, groups: map[scale.Phase]*group{}}
}

// phases are the words for them, in the order in which new pods are named.
var phases = []struct {
	word  string
	phase scale.Phase
}{
	{"serving", scale.Serving}, {"starting", scale.Starting}, {"unschedulable", scale.Unschedulable}, {"terminating", scale.Terminating},
}

// apply is what a line of the timeline changes.
func (w *world) apply(e *event) error {
	now, first := zero.Add(e.at), w.spec < 0
	w.spec = max(w.spec, 0)
	for _, s := range e.sets {
		if err := w.set(s, now); err != nil {
			return fmt.Errorf("%s: %w", s.key, err)
		}
	}
	since := now
	if first {
		since = now.Add(-before)
	}
	w.move(since)
	return nil
}

func (w *world) set(s set, now time.Time) (err error) {
	for _, p := range phases {
		if p.word == s.key {
			g, err := parseGroup(s.value, len(w.policy.Signals))
			w.groups[p.phase] = &g
			return err
		}
	}
	switch s.key {
	case "replicas":
		w.spec, err = number(s.value)
	case "gpus":
		w.policy.GPUsPerReplica, err = number(s.value)
	case "total":
		g, bad := parseGroup("1@"+s.value, len(w.policy.Signals))
		w.total, err = &g, bad
	case "came":
		g, bad := parseCame(s.value, w.policy.Signals)
		w.came, err = &g, bad
	case "pace":
		w.paces, err = parsePaces(s.value, w.policy.Signals)
	case "startup":
		w.policy.Startup, err = parseTime(s.value)
	case "age":
		w.age, err = time.ParseDuration(s.value)
	case "frozen":
		w.frozen, w.stopped = now.Add(-w.age), true
	case "live":
		w.stopped = false
	case "restart":
		w.state, err = restart(w.state)
	case "forget":
		w.state = scale.State{}
	default:
		err = fmt.Errorf("not a word of the timeline")
	}
	return err
}

func number(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: want a whole number", s)
	}
	return int32(n), nil
}

// restart is a controller that reads the state of the one before it.
func restart(s scale.State) (out scale.State, err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	return out, json.Unmarshal(b, &out)
}

// move brings the pods to what the groups say: what is on its way goes on, the
// oldest first, the youngest leave where there are too many, and new ones come.
func (w *world) move(now time.Time) {
	w.promote(scale.Serving, now, scale.Starting, scale.Unschedulable)
	w.promote(scale.Starting, now, scale.Unschedulable)
	for _, p := range phases {
		for w.lacks(p.phase) < 0 {
			w.leave(p.phase, now)
		}
	}
	for _, p := range phases {
		for w.lacks(p.phase) > 0 {
			w.pods = append(w.pods, pod{fmt.Sprintf("pod-%d", w.made), p.phase, now})
			w.made++
		}
	}
}

// promote fills up a phase from those before it, as long as these have more
// pods between them than they should.
func (w *world) promote(to scale.Phase, now time.Time, from ...scale.Phase) {
	for _, phase := range from {
		for w.lacks(to) > 0 && w.count(phase) > 0 && -w.lacks(from...) > 0 {
			at := slices.IndexFunc(w.pods, func(x pod) bool { return x.phase == phase })
			w.pods[at].phase, w.pods[at].since = to, now
		}
	}
}

// leave takes the youngest pod of a phase away, by way of terminating if some
// are said to be.
func (w *world) leave(phase scale.Phase, now time.Time) {
	for i := len(w.pods) - 1; i >= 0; i-- {
		if w.pods[i].phase != phase {
			continue
		}
		if w.lacks(scale.Terminating) > 0 {
			w.pods[i].phase, w.pods[i].since = scale.Terminating, now
		} else {
			w.pods = slices.Delete(w.pods, i, i+1)
		}
		return
	}
}

func (w *world) count(phase scale.Phase) (n int) {
	for i := range w.pods {
		if w.pods[i].phase == phase {
			n++
		}
	}
	return n
}

// lacks is how many pods these phases should have and do not.
func (w *world) lacks(in ...scale.Phase) (n int) {
	for _, phase := range in {
		if g := w.groups[phase]; g != nil {
			n += g.count
		}
		n -= w.count(phase)
	}
	return n
}

// decide shows the engine the world and does what it says.
func (w *world) decide(at time.Duration) scale.Decision {
	now := zero.Add(at)
	d, state := scale.Decide(w.policy, w.observe(now), w.state, now)
	w.state, w.spec = state, d.Replicas
	return d
}

// observe is what there is to see.
func (w *world) observe(now time.Time) scale.Observation {
	measured := now.Add(-w.age)
	if w.stopped {
		measured = w.frozen
	}
	o := scale.Observation{Replicas: w.spec}
	index := map[scale.Phase]int{}
	for _, p := range w.pods {
		r := scale.Replica{Name: p.name, Phase: p.phase, Since: p.since, Readings: w.groups[p.phase].readings(index[p.phase], measured)}
		if p.phase == scale.Serving {
			w.serve(&r, index[p.phase], measured)
		}
		o.Pods = append(o.Pods, r)
		index[p.phase]++
	}
	if w.total != nil {
		o.Totals = w.total.readings(0, measured)
	}
	return o
}

// perSecond is how many requests get their first token where nothing says how
// many come.
const perSecond = 1

// serve adds what a server tells of its requests, as the i-th of those that serve.
func (w *world) serve(r *scale.Replica, i int, measured time.Time) {
	if w.came != nil {
		r.Arrivals = w.came.readings(0, measured)
	}
	if len(w.paces) == 0 {
		return
	}
	told := w.paces[min(i, len(w.paces)-1)]
	r.Paces = make([]scale.Pace, len(w.policy.Signals))
	for k := range min(len(r.Readings), len(r.Paces)) {
		batch := r.Readings[k]
		if told.latency == 0 || !w.policy.Signals[k].Learned() || !batch.OK || !(batch.Value > 0) { // an idle server tells no times
			continue
		}
		p := scale.Pace{Batch: batch.Value, TokenSeconds: told.latency.Seconds(), At: batch.At, OK: true}
		if told.first > 0 {
			p.FirstTokenSeconds, p.FirstTokensPerSecond = told.first.Seconds(), perSecond
			if k < len(r.Arrivals) && r.Arrivals[k].OK {
				p.FirstTokensPerSecond = r.Arrivals[k].Value
			}
		}
		r.Paces[k] = p
	}
}
