// SPDX-License-Identifier: Apache-2.0

// Package observe reads a workload's pods as replicas: their phases, their versions and
// their readings.
package observe

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/objective"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Values provides the pods' readings; trust.Values implements it.
type Values interface {
	Field(pod *corev1.Pod, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Reading, bool)
	PodMetric(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool)
	PodMetricRate(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool)
	PodMetricStep(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Step, bool)
}

// Reader reads the pods' readings at one moment.
type Reader struct {
	Values
	Now    time.Time
	MaxAge time.Duration // readings that are older are absent
	// Holds returns how many GPUs a pod holds; negative: unknown.
	Holds func(pod *corev1.Pod) int
}

// Observe returns the observation of a workload with these replicas.
func (v Reader) Observe(replicas int32, units *replica.Units, sources []policy.Source) scale.Observation {
	o := scale.Observation{Replicas: replicas, Pods: make([]scale.Replica, 0, len(units.Pods)), Version: replica.NewestVersion(units.Pods)}
	for n, pod := range units.Pods {
		if replica.Finished(pod) {
			continue
		}
		phase, since := replica.PhaseOf(pod)
		r := scale.Replica{Name: pod.Name, Phase: phase, Since: since, Version: replica.Version(pod), Readings: make([]scale.Reading, len(sources)), Gated: replica.Gated(&pod.Spec)}
		if n, ok := replica.Ordinal(pod); ok {
			o.Ordered, r.Ordinal = true, n
		}
		if phase == scale.Leaving || phase == scale.Starting && r.Gated && !replica.IsNew(pod) { // it may have requests
			r.Out, r.InFlight = !replica.IsReady(pod), v.readInFlight(pod, sources)
		}
		if phase == scale.Serving && v.sleeps(pod, sources) {
			r.Phase, r.Since = scale.Starting, time.Time{} // for longer than any start: no capacity, and none on its way
		}
		for i := range sources {
			r.Readings[i] = v.readSignal(pod, units.Members(n), &sources[i])
			if sources[i].Pace != nil {
				r.Paces = append(r.Paces, make([]scale.Pace, i+1-len(r.Paces))...)
				r.Paces[i] = v.readPace(pod, &sources[i])
			}
			if sources[i].Arrived != nil || sources[i].Completed != nil {
				r.Arrivals = append(r.Arrivals, make([]scale.Reading, i+1-len(r.Arrivals))...)
				r.Arrivals[i] = v.readArrivalRate(pod, &sources[i])
			}
		}
		o.Pods = append(o.Pods, r)
	}
	return o
}

// sleeps reports whether the server of a pod sleeps. One that does not say so is awake.
func (v Reader) sleeps(pod *corev1.Pod, sources []policy.Source) bool {
	for i := range sources {
		if s, ok := v.ReadTerm(pod, sources[i].Awake); ok {
			return s.Value == 0
		}
	}
	return false
}

// readInFlight returns the requests that a pod has and has not answered. They are absent if
// no signal counts them.
func (v Reader) readInFlight(pod *corev1.Pod, sources []policy.Source) scale.Reading {
	for i := range sources {
		if len(sources[i].InFlight) > 0 {
			return v.RequestsOf(pod, &sources[i])
		}
	}
	return scale.Reading{}
}

// RequestsOf returns the requests in flight at a pod, by a source that counts them.
func (v Reader) RequestsOf(pod *corev1.Pod, source *policy.Source) scale.Reading {
	return v.sumTerms(pod, source.InFlight)
}

// readSignal returns a replica's reading of one signal. The server of a group is its
// leader's; GPUs are those of all its members.
func (v Reader) readSignal(pod *corev1.Pod, members []*corev1.Pod, src *policy.Source) scale.Reading {
	switch {
	case src.Kind == policy.Pods:
		return v.sumTerms(pod, src.Terms)
	case src.Kind == policy.GPU && len(members) > 1:
		return v.readGroup(members, src.Field)
	case src.Kind == policy.GPU:
		return v.readField(pod, src.Field)
	}
	return scale.Reading{}
}

func (v Reader) readField(pod *corev1.Pod, f gpu.FieldID) scale.Reading {
	s, ok := v.Field(pod, f, v.Now, v.MaxAge)
	return scale.Reading{Value: s.Value, At: s.At, OK: ok, MaxAge: s.MaxAge}
}

// readGroup combines the GPUs of a group as those of a pod are combined. The reading has the
// time of its oldest part, and is absent if a member that holds GPUs, or may hold some, has
// no value.
func (v Reader) readGroup(members []*corev1.Pod, f gpu.FieldID) (out scale.Reading) {
	field, known := gpu.Lookup(f)
	if !known {
		return scale.Reading{}
	}
	gpus := 0
	for _, pod := range members {
		n := v.Holds(pod)
		if n == 0 {
			continue
		}
		n = max(n, 1)
		r := v.readField(pod, f)
		if !r.OK {
			return scale.Reading{}
		}
		if !out.OK || r.At.Before(out.At) {
			out.At, out.MaxAge = r.At, r.MaxAge
		}
		switch {
		case field.PodAgg == gpu.Mean:
			out.Value += (r.Value - out.Value) * float64(n) / float64(gpus+n)
		case field.PodAgg == gpu.Max && out.OK:
			out.Value = max(out.Value, r.Value)
		case field.PodAgg == gpu.NoAggregate && out.OK:
			return scale.Reading{}
		default:
			out.Value += r.Value
		}
		out.OK, gpus = true, gpus+n
	}
	return out
}

// sumTerms adds up the terms of a pod's reading. The reading has the time of its
// oldest term, and is absent if one term is absent.
func (v Reader) sumTerms(pod *corev1.Pod, terms []policy.Term) (r scale.Reading) {
	for i, term := range terms {
		s, ok := v.ReadTerm(pod, term)
		if !ok {
			return scale.Reading{}
		}
		r.Value += s.Value
		if i == 0 || s.At.Before(r.At) {
			r.At = s.At
		}
		r.OK = true
	}
	return r
}

// readPace returns the latencies of a pod's requests. They are absent while the pod
// generates no tokens, unless it counts requests: none is a count, too.
func (v Reader) readPace(pod *corev1.Pod, source *policy.Source) scale.Pace {
	src := source.Pace
	batch, ok := v.ReadTerm(pod, src.TokenSeconds)
	tokens, hasTokens := v.ReadTerm(pod, src.Tokens)
	if !ok || !hasTokens {
		return scale.Pace{}
	}
	p := scale.Pace{Batch: batch.Value, At: batch.At, OK: true}
	if source.Misses != nil {
		objective.AddPace(&p, source.Misses, func(t policy.Term) (float64, bool) {
			s, ok := v.ReadTerm(pod, t)
			return s.Value, ok
		})
	}
	switch {
	case tokens.Value > 0:
	case p.Counted:
		return p
	default:
		return scale.Pace{}
	}
	p.TokenSeconds = batch.Value / tokens.Value
	waited, ok := v.ReadTerm(pod, src.FirstTokenSeconds)
	firsts, hasFirsts := v.ReadTerm(pod, src.FirstTokens)
	if ok && hasFirsts && firsts.Value > 0 {
		p.FirstTokenSeconds, p.FirstTokensPerSecond = waited.Value/firsts.Value, firsts.Value
	}
	return p
}

// readArrivalRate returns the requests/s that arrived at a pod between its last two
// readings: the increase of the arrival counter, or that of the completed requests
// plus that of the requests in flight.
func (v Reader) readArrivalRate(pod *corev1.Pod, src *policy.Source) scale.Reading {
	counter, gauges := src.Arrived, []policy.Term(nil)
	if counter == nil {
		counter, gauges = src.Completed, src.Terms
	}
	counted, ok := v.readStep(pod, counter)
	came := counted.To.Value - counted.From.Value
	if !ok || came < 0 { // the server was restarted
		return scale.Reading{}
	}
	for _, term := range gauges {
		there, ok := v.readStep(pod, term)
		if !ok || !there.To.At.Equal(counted.To.At) || !there.From.At.Equal(counted.From.At) {
			return scale.Reading{}
		}
		came += there.To.Value - there.From.Value
	}
	return scale.Reading{Value: max(0, came) / counted.To.At.Sub(counted.From.At).Seconds(), At: counted.To.At, OK: true}
}

// readStep returns the last change of a term: of the first of its metrics that the pod
// exposes.
func (v Reader) readStep(pod *corev1.Pod, term policy.Term) (series.Step, bool) {
	for i := range term {
		if s, ok := v.PodMetricStep(pod.Namespace, pod.Name, term[i].Key(), v.Now, v.MaxAge); ok {
			return s, true
		}
	}
	return series.Step{}, false
}

// ReadTerm returns the value of a term: of the first of its metrics that the pod
// exposes.
func (v Reader) ReadTerm(pod *corev1.Pod, term policy.Term) (series.Sample, bool) {
	for i := range term {
		m, get := &term[i], v.PodMetric
		if m.Rate {
			get = v.PodMetricRate
		}
		if s, ok := get(pod.Namespace, pod.Name, m.Key(), v.Now, v.MaxAge); ok {
			if m.Factor != 0 {
				s.Value *= m.Factor
			}
			return s, true
		}
	}
	return series.Sample{}, false
}

// NewestReading returns the time of the observation's newest reading; zero if there
// is none.
func NewestReading(o *scale.Observation) (at time.Time) {
	update := func(readings []scale.Reading) {
		for _, r := range readings {
			if r.OK && r.At.After(at) {
				at = r.At
			}
		}
	}
	update(o.Totals)
	for i := range o.Pods {
		update(o.Pods[i].Readings)
	}
	return at
}
