// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// world is the simulated workload, up to the current line of the timeline.
type world struct {
	policy    scale.Policy // with the bounds of the spec
	compiled  policy.Compiled
	state     scale.State
	replicas  int32
	pods      []pod // oldest first
	groups    map[scale.Phase]*group
	total     *group           // one element: the workload's totals
	arrivals  *group           // one element: the arrival rates of each serving pod
	latencies []tokenLatencies // of the serving pods, oldest first; the last is that of all others
	age       time.Duration
	frozen    time.Time // when the readings were last measured, if they are frozen
	stopped   bool
	version   string // of pods that are created
	created   int
	partner   int32         // what the partner of spec.pair wants
	decidedAt time.Duration // the last decision; before the first: -1
	drains
}

type pod struct {
	name, version string
	phase         scale.Phase
	since         time.Time
	leftAt        time.Time // when a serving pod left the endpoints; zero: it did not
	ungated       bool
}

// timelineStart is time 0 of the timeline. The pods of the first line have been in
// their phases for initialAge.
var timelineStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const initialAge = time.Hour

func newWorld(p scale.Policy) *world {
	return &world{policy: p, replicas: -1, decidedAt: -1, age: time.Second, groups: map[scale.Phase]*group{}}
}

// phases has the keywords of the phases, in the order in which new pods are named.
var phases = []struct {
	word  string
	phase scale.Phase
}{
	{"serving", scale.Serving}, {"starting", scale.Starting}, {"unschedulable", scale.Unschedulable}, {"terminating", scale.Terminating},
}

// apply applies a line of the timeline.
func (w *world) apply(e *event) error {
	now, first := timelineStart.Add(e.at), w.replicas < 0
	w.replicas = max(w.replicas, 0)
	for _, s := range e.assignments {
		if err := w.assign(s, now); err != nil {
			return fmt.Errorf("%s: %w", s.key, err)
		}
	}
	since := now
	if first {
		since = now.Add(-initialAge)
	}
	w.reconcilePods(since)
	return nil
}

func (w *world) assign(s assignment, now time.Time) (err error) {
	for _, p := range phases {
		if p.word == s.key {
			g, err := parseGroup(s.value, len(w.policy.Signals))
			w.groups[p.phase] = &g
			return err
		}
	}
	switch s.key {
	case "replicas":
		w.replicas, err = parseCount(s.value)
	case "gpus":
		w.policy.GPUsPerReplica, err = parseCount(s.value)
	case "total":
		g, bad := parseGroup("1@"+s.value, len(w.policy.Signals))
		w.total, err = &g, bad
	case "came":
		g, bad := parseArrivals(s.value, w.policy.Signals)
		w.arrivals, err = &g, bad
	case "pace":
		w.latencies, err = parsePaces(s.value, w.policy.Signals)
	case "startup":
		w.policy.Startup, err = parseTime(s.value)
	case "version":
		w.version = s.value
	case "ungated":
		w.ungated = true
	case "ordered":
		w.ordered = true
	case "disruptions":
		w.budget, err = parseBudget(s.value)
	case "partner":
		w.partner, err = parseCount(s.value)
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
		err = fmt.Errorf("unknown keyword")
	}
	return err
}

func parseCount(s string) (int32, error) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q: want a whole number", s)
	}
	return int32(n), nil
}

// restart encodes and decodes the state, as a restart of the controller does.
func restart(s scale.State) (out scale.State, err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return s, err
	}
	return out, json.Unmarshal(b, &out)
}

// reconcilePods changes the pods to match the groups: the oldest pods advance to the
// next phase, the youngest of a too large group are removed, and missing pods are
// created.
func (w *world) reconcilePods(now time.Time) {
	w.promote(scale.Serving, now, scale.Starting, scale.Unschedulable)
	w.promote(scale.Starting, now, scale.Unschedulable)
	for _, p := range phases {
		for w.shortage(p.phase) < 0 {
			w.removeYoungest(p.phase, now)
		}
	}
	for _, p := range phases {
		for w.shortage(p.phase) > 0 {
			w.pods = append(w.pods, pod{name: fmt.Sprintf("pod-%d", w.created), version: w.version, phase: p.phase, since: now, ungated: w.ungated})
			w.created++
		}
	}
}

// promote moves pods to a phase from earlier ones, while these have more pods together
// than their groups.
func (w *world) promote(to scale.Phase, now time.Time, from ...scale.Phase) {
	for _, phase := range from {
		for w.shortage(to) > 0 && w.count(phase) > 0 && -w.shortage(from...) > 0 {
			at := slices.IndexFunc(w.pods, func(x pod) bool { return x.phase == phase })
			w.pods[at].phase, w.pods[at].since = to, now
		}
	}
}

// removeYoungest removes the youngest pod of a phase, of an earlier version first. The pod
// becomes terminating if that group lacks pods.
func (w *world) removeYoungest(phase scale.Phase, now time.Time) {
	outdated := func(x pod) bool { return x.phase == phase && x.version != w.version }
	for i := len(w.pods) - 1; i >= 0; i-- {
		if w.pods[i].phase != phase || w.pods[i].version == w.version && slices.ContainsFunc(w.pods, outdated) {
			continue
		}
		if w.shortage(scale.Terminating) > 0 {
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

// shortage returns the number of pods that these phases lack together.
func (w *world) shortage(in ...scale.Phase) (n int) {
	for _, phase := range in {
		if g := w.groups[phase]; g != nil {
			n += g.count
		}
		n -= w.count(phase)
	}
	return n
}

// hpaSync is the time between two syncs of a HorizontalPodAutoscaler.
const hpaSync = peers.SyncSeconds * time.Second

// decide runs the engine on the current observation, and applies the decision. It reports whether the decision waits:
// with actuation: HPA, it is applied at the next sync.
func (w *world) decide(at time.Duration) (d scale.Decision, waits bool) {
	now := timelineStart.Add(at)
	p := w.policy
	w.compiled.Apply(&p, now, timelineStart)
	if pair := w.compiled.Pair; pair.With != "" {
		p.Pair = scale.Pair{With: pair.With, PerPartner: pair.Least}
	}
	d, state := scale.Decide(p, w.observe(now), w.state, now)
	syncs := w.compiled.Actuation != v1alpha1.ActuationHPA || w.decidedAt < 0 || at/hpaSync != w.decidedAt/hpaSync
	w.state, w.decidedAt = state, at
	if waits = !syncs && d.Changes(); !waits {
		w.replicas = d.Replicas
	}
	w.applyDrain(&d, now, !waits)
	return d, waits
}

// observe returns the observation at now.
func (w *world) observe(now time.Time) scale.Observation {
	measured := now.Add(-w.age)
	if w.stopped {
		measured = w.frozen
	}
	o := scale.Observation{Replicas: w.replicas, Ordered: w.ordered, Disruptions: w.budget, Partner: scale.Reading{Value: float64(w.partner), At: now, OK: true}}
	index := map[scale.Phase]int{}
	for _, p := range w.pods {
		r := scale.Replica{Name: p.name, Version: p.version, Phase: p.phase, Since: p.since, Readings: w.groups[p.phase].readings(index[p.phase], measured)}
		if p.phase == scale.Serving {
			w.addServerReadings(&r, index[p.phase], measured)
		}
		w.observeDrain(&r, &p, now)
		if p.phase != scale.Terminating || o.Version == "" {
			o.Version = p.version
		}
		o.Pods = append(o.Pods, r)
		index[p.phase]++
	}
	o.UseReadings()
	if w.total != nil {
		o.Totals = w.total.readings(0, measured)
	}
	return o
}

// defaultFirstTokenRate is the rate of first tokens, in requests/s, if the timeline has
// no arrival rate.
const defaultFirstTokenRate = 1

// addServerReadings adds the arrival rates and latencies of the i-th serving pod.
func (w *world) addServerReadings(r *scale.Replica, i int, measured time.Time) {
	if w.arrivals != nil {
		r.Arrivals = w.arrivals.readings(0, measured)
	}
	if len(w.latencies) == 0 {
		return
	}
	shown := w.latencies[min(i, len(w.latencies)-1)]
	r.Paces = make([]scale.Pace, len(w.policy.Signals))
	for k := range min(len(r.Readings), len(r.Paces)) {
		batch := r.Readings[k]
		if shown.perToken == 0 || !w.policy.Signals[k].Learned() || !batch.OK || !(batch.Value > 0) { // an idle server has no latencies
			continue
		}
		p := scale.Pace{Batch: batch.Value, TokenSeconds: shown.perToken.Seconds(), At: batch.At, OK: true}
		if shown.firstToken > 0 {
			p.FirstTokenSeconds, p.FirstTokensPerSecond = shown.firstToken.Seconds(), defaultFirstTokenRate
			if k < len(r.Arrivals) && r.Arrivals[k].OK {
				p.FirstTokensPerSecond = r.Arrivals[k].Value
			}
		}
		r.Paces[k] = p
	}
}
