// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// NewOurs returns GPUPilot's engine with a policy. Its class is OnGPU if the policy reads
// only GPUs.
func NewOurs(name string, p policy.Compiled) Entry {
	class, all, formula := OnGPU, len(p.Sources), p.Policy.Formula
	if p = withoutQueries(p); len(p.Sources) < all {
		name += ", without its queries"
	}
	objective := 0.0
	for i, s := range p.Sources {
		if s.Kind != policy.GPU {
			class = OnRequests
		}
		objective = max(objective, p.Policy.Signals[i].Objective)
	}
	notes := notesOf(name, &p)
	if formula != nil && p.Policy.Formula == nil {
		notes = append(notes, name+" is replayed without its formula, which combines queries: the signal that asks for the most replicas decides")
	}
	return Entry{
		Name: name, Family: Ours, Class: class, Objective: objective, Max: p.Policy.Max, Notes: notes, Untimed: untimedNotesOf(name, &p),
		New: func(r *Replay) (service.Autoscaler, error) { return newEngine(r, p) },
	}
}

// notesOf says in what the replay of a policy differs from a cluster.
func notesOf(name string, p *policy.Compiled) (out []string) {
	if p.Pair.With != "" {
		out = append(out, fmt.Sprintf("%s is replayed without its pair %s: a replay has one workload", name, p.Pair.With))
	}
	if !p.Override.Until.IsZero() {
		out = append(out, name+" is replayed without its override")
	}
	if p.Actuation == v1alpha1.ActuationHPA {
		out = append(out, fmt.Sprintf("%s sets replicas through a HorizontalPodAutoscaler, which syncs every %d s", name, directLag().Sync))
	}
	if p.Policy.Idle.After > 0 {
		out = append(out, name+" may remove replicas as idle: nobody scales it up by hand here, so later requests are missed")
	}
	return out
}

// untimedNotesOf says what of a policy is left out if the times of day of the load are unknown.
func untimedNotesOf(name string, p *policy.Compiled) []string {
	if len(p.Schedules) == 0 {
		return nil
	}
	return []string{name + " is replayed without its schedules: they need a load with times of day, as --from-cluster and --query have, that is not scaled"}
}

// NewOursAtModelLimits is like NewOurs, but replaces the latency limits of the policy by
// those of the model.
func NewOursAtModelLimits(name string, p policy.Compiled) Entry {
	e := NewOurs(name, p)
	p = withoutQueries(p)
	e.New = func(r *Replay) (service.Autoscaler, error) {
		limited := p
		limited.Policy.Signals = slices.Clone(p.Policy.Signals)
		for i := range limited.Policy.Signals {
			s := &limited.Policy.Signals[i]
			if s.Limit > 0 {
				s.Limit = r.Model.ITLLimit
			}
			if s.FirstLimit > 0 {
				s.FirstLimit = r.Model.TTFTLimit
			}
		}
		return newEngine(r, limited)
	}
	return e
}

// withoutQueries returns the policy without its PromQL signals, unless it has no others.
// They are not simulated. Then no signal can scale from zero, so at least one replica is
// kept, and a formula, which is over the signals by their index, lacks terms.
func withoutQueries(p policy.Compiled) policy.Compiled {
	var signals []scale.Signal
	var sources []policy.Source
	for i, s := range p.Sources {
		if s.Kind != policy.Query {
			signals, sources = append(signals, p.Policy.Signals[i]), append(sources, s)
		}
	}
	if len(sources) == 0 || len(sources) == len(p.Sources) {
		return p
	}
	p.Policy.Signals, p.Sources, p.Policy.Formula = signals, sources, nil
	p.Policy.Min = max(p.Policy.Min, 1)
	return p
}

// engine is scale.Decide, called as the controller calls it: once per second, with values
// that are one second old.
type engine struct {
	policy        scale.Policy
	sources       []source
	countArrivals []bool           // by source
	inFlight      source           // the requests of a pod; nil: no signal counts them
	sync          *Lag             // of the HorizontalPodAutoscaler that sets the replicas; nil: they are set at once
	givenStartup  time.Duration    // from the policy; 0: learned
	schedules     *policy.Compiled // nil: none
	most          int32            // replicas, also of a schedule
	start         time.Time        // of the replay

	past     []promise.Load
	state    scale.State
	obs      scale.Observation
	readings []scale.Reading // buffers of the observation
	paces    []scale.Pace
	arrivals []scale.Reading

	rules map[scale.Rule]int
	last  scale.Decision
}

// scrapeDelay is the age of the values that the engine reads, in seconds.
const scrapeDelay = 1

// newEngine returns the engine. The policy's bounds are applied unless the load is scaled.
func newEngine(r *Replay, compiled policy.Compiled) (*engine, error) {
	low, high := r.Min, r.Max
	if !r.Scaled {
		low = min(max(low, int(compiled.Policy.Min)), high)
		high = max(low, min(high, int(compiled.Policy.Max)))
	}
	e := &engine{policy: compiled.Policy, givenStartup: compiled.Policy.Startup, rules: map[scale.Rule]int{}}
	e.policy.Min, e.policy.Max = int32(low), int32(high)
	e.past, e.start, e.most = r.Past, time.Unix(0, 0), int32(r.Max)
	if len(compiled.Schedules) > 0 && r.HasTimes() {
		e.schedules, e.start = &policy.Compiled{Schedules: compiled.Schedules}, r.Start
	}
	if compiled.Actuation == v1alpha1.ActuationHPA {
		sync := directLag().withPhases(r.Seed)
		e.sync = &sync
	}
	for i, s := range compiled.Sources {
		src, err := newSource(s)
		if err != nil {
			return nil, fmt.Errorf("spec.signals: %s: %w", compiled.Policy.Signals[i].Name, err)
		}
		e.sources, e.countArrivals = append(e.sources, src), append(e.countArrivals, s.Arrived != nil || s.Completed != nil)
		if len(s.InFlight) > 0 && e.inFlight == nil {
			e.inFlight = src
		}
	}
	return e, nil
}

// RuleCounts returns how often each rule decided; nil for other autoscalers than GPUPilot.
func RuleCounts(a service.Autoscaler) map[string]int {
	e, ok := a.(*engine)
	if !ok {
		return nil
	}
	out := make(map[string]int, len(e.rules))
	for rule, n := range e.rules {
		out[string(rule)] = n
	}
	return out
}

// LastDecision returns the last decision of GPUPilot; ok is false for other autoscalers.
func LastDecision(a service.Autoscaler) (d scale.Decision, ok bool) {
	e, ok := a.(*engine)
	if !ok {
		return scale.Decision{}, false
	}
	return e.last, true
}

// Decide implements service.Autoscaler.
func (e *engine) Decide(d *service.Deployment, now int) (int, []string) {
	e.policy.GPUsPerReplica = d.GPUsPerReplica()
	e.policy.Startup = e.givenStartup
	if e.givenStartup == 0 {
		e.policy.Startup, e.policy.TypicalStartup = d.Starts().Quantile(0.95), d.Starts().Quantile(0.75)
	}
	e.observe(d, now)
	at, p := e.timeOf(now), e.policy
	if e.schedules != nil {
		e.schedules.Apply(&p, at, at)
		p.Max = min(p.Max, e.most)
		p.Min = min(p.Min, p.Max)
	}
	decision, state := scale.Decide(p, e.obs, e.state, at)
	e.state = state
	if now == 1 {
		e.state = scale.Recall(e.policy, e.state, func(int, time.Time, time.Time) []promise.Load { return e.past })
	}
	if now%int(scale.LearnInterval/time.Second) == 0 {
		e.state = scale.Learn(e.policy, e.state)
	}
	e.rules[decision.Rule]++
	e.last = decision
	if !decision.Changes() || e.sync != nil && !e.sync.syncs(now) {
		return service.Unchanged, nil
	}
	return int(decision.Replicas), decision.Victims
}

// Leave implements service.Drainer.
func (e *engine) Leave() []string { return e.last.Leave }

// timeOf returns the time of a second of the replay.
func (e *engine) timeOf(second int) time.Time {
	return e.start.Add(time.Duration(second) * time.Second)
}

// observe fills in the observation.
func (e *engine) observe(d *service.Deployment, now int) {
	s, at := d.At(now-scrapeDelay), e.timeOf(now-scrapeDelay)
	e.obs.Replicas = int32(d.Replicas())
	e.obs.Pods = e.obs.Pods[:0]
	n := len(e.sources)
	if want := n * len(d.Pods()); len(e.readings) < want {
		e.readings, e.paces, e.arrivals = make([]scale.Reading, 2*want), make([]scale.Pace, 2*want), make([]scale.Reading, 2*want)
	}
	for i, p := range d.Pods() {
		readings, paces, arrivals := e.readings[i*n:(i+1)*n], e.paces[i*n:(i+1)*n], e.arrivals[i*n:(i+1)*n]
		x := s.Of(p.ID)
		for k, src := range e.sources {
			v, ok := src.value(x)
			readings[k] = scale.Reading{Value: v, At: at, OK: ok}
			if e.policy.Signals[k].Learned() {
				paces[k] = paceOf(x, at)
			}
			if e.countArrivals[k] {
				arrivals[k] = arrivalsOf(x, at)
			}
		}
		since := p.Since
		if p.Phase == service.Pulling || p.Phase == service.Loading {
			since = p.Bound
		}
		r := scale.Replica{
			Name: p.Name, Phase: phaseOf(p.Phase), Since: e.timeOf(int(since)), Readings: readings, Paces: paces, Arrivals: arrivals, Gated: true,
		}
		if p.Phase == service.Serving && p.LeftAt > 0 {
			v, ok := e.inFlight.value(x)
			r.Phase, r.Since, r.Out, r.InFlight = scale.Leaving, e.timeOf(int(p.LeftAt)), true, scale.Reading{Value: v, At: at, OK: ok}
		}
		e.obs.Pods = append(e.obs.Pods, r)
	}
	if e.policy.Idle.After > 0 {
		e.obs.UseReadings()
	}
}

func phaseOf(p service.Phase) scale.Phase {
	switch p {
	case service.Unschedulable:
		return scale.Unschedulable
	case service.Pulling, service.Loading:
		return scale.Starting
	case service.Serving:
		return scale.Serving
	}
	return scale.Terminating
}
