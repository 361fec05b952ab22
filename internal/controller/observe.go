// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
)

// values is where readings come from; vetted.
type values interface {
	Field(pod *corev1.Pod, f gpu.FieldID, now time.Time, maxAge time.Duration) (series.Reading, bool)
	PodMetric(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool)
	PodMetricRate(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Sample, bool)
	PodMetricStep(namespace, pod, metric string, now time.Time, maxAge time.Duration) (series.Step, bool)
}

// observe says what is known of a workload with these pods.
func observe(replicas int32, pods []*corev1.Pod, sources []policy.Source, v values, now time.Time, maxAge time.Duration) scale.Observation {
	o := scale.Observation{Replicas: replicas, Pods: make([]scale.Replica, 0, len(pods))}
	for _, pod := range pods {
		if Finished(pod) {
			continue
		}
		phase, since := PhaseOf(pod)
		r := scale.Replica{Name: pod.Name, Phase: phase, Since: since, Readings: make([]scale.Reading, len(sources))}
		for i := range sources {
			r.Readings[i] = read(v, pod, &sources[i], now, maxAge)
			if sources[i].Pace != nil {
				r.Paces = append(r.Paces, make([]scale.Pace, i+1-len(r.Paces))...)
				r.Paces[i] = pace(v, pod, sources[i].Pace, now, maxAge)
			}
			if sources[i].Came != nil || sources[i].Ended != nil {
				r.Arrivals = append(r.Arrivals, make([]scale.Reading, i+1-len(r.Arrivals))...)
				r.Arrivals[i] = arrivals(v, pod, &sources[i], now, maxAge)
			}
		}
		o.Pods = append(o.Pods, r)
	}
	return o
}

// read reads one signal of a pod.
func read(v values, pod *corev1.Pod, src *policy.Source, now time.Time, maxAge time.Duration) scale.Reading {
	switch {
	case src.Kind == policy.Pods:
		return sum(v, pod, src.Terms, now, maxAge)
	case src.Kind == policy.GPU:
		s, ok := v.Field(pod, src.Field, now, maxAge)
		return scale.Reading{Value: s.Value, At: s.At, OK: ok, MaxAge: s.MaxAge}
	}
	return scale.Reading{}
}

// sum adds up the terms of a pod's reading, which is as old as the oldest of
// them and absent where one is.
func sum(v values, pod *corev1.Pod, terms []policy.Term, now time.Time, maxAge time.Duration) (r scale.Reading) {
	for i, term := range terms {
		s, ok := firstOf(v, pod, term, now, maxAge)
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

// pace is how fast a pod's batch advances. One that decodes nothing tells nothing.
func pace(v values, pod *corev1.Pod, src *policy.Pace, now time.Time, maxAge time.Duration) scale.Pace {
	batch, ok := firstOf(v, pod, src.Seconds, now, maxAge)
	tokens, too := firstOf(v, pod, src.Tokens, now, maxAge)
	if !ok || !too || tokens.Value <= 0 {
		return scale.Pace{}
	}
	p := scale.Pace{Batch: batch.Value, TokenSeconds: batch.Value / tokens.Value, At: batch.At, OK: true}
	waited, ok := firstOf(v, pod, src.FirstSeconds, now, maxAge)
	firsts, too := firstOf(v, pod, src.Firsts, now, maxAge)
	if ok && too && firsts.Value > 0 {
		p.FirstTokenSeconds, p.FirstTokensPerSecond = waited.Value/firsts.Value, firsts.Value
	}
	return p
}

// arrivals is how many requests/s came to a pod between its last two readings:
// those that it counted, or those that it answered and what those that it has grew by.
func arrivals(v values, pod *corev1.Pod, src *policy.Source, now time.Time, maxAge time.Duration) scale.Reading {
	counter, gauges := src.Came, []policy.Term(nil)
	if counter == nil {
		counter, gauges = src.Ended, src.Terms
	}
	counted, ok := stepOf(v, pod, counter, now, maxAge)
	came := counted.To.Value - counted.From.Value
	if !ok || came < 0 { // the server began anew
		return scale.Reading{}
	}
	for _, term := range gauges {
		there, ok := stepOf(v, pod, term, now, maxAge)
		if !ok || !there.To.At.Equal(counted.To.At) || !there.From.At.Equal(counted.From.At) {
			return scale.Reading{}
		}
		came += there.To.Value - there.From.Value
	}
	return scale.Reading{Value: max(0, came) / counted.To.At.Sub(counted.From.At).Seconds(), At: counted.To.At, OK: true}
}

// stepOf is the last change of the first of a term's metrics that the pod shows.
func stepOf(v values, pod *corev1.Pod, term policy.Term, now time.Time, maxAge time.Duration) (series.Step, bool) {
	for i := range term {
		if s, ok := v.PodMetricStep(pod.Namespace, pod.Name, term[i].Key(), now, maxAge); ok {
			return s, true
		}
	}
	return series.Step{}, false
}

// firstOf is the first of a term's metrics that the pod shows.
func firstOf(v values, pod *corev1.Pod, term policy.Term, now time.Time, maxAge time.Duration) (series.Sample, bool) {
	for i := range term {
		m, get := &term[i], v.PodMetric
		if m.Rate {
			get = v.PodMetricRate
		}
		if s, ok := get(pod.Namespace, pod.Name, m.Key(), now, maxAge); ok {
			if m.Factor != 0 {
				s.Value *= m.Factor
			}
			return s, true
		}
	}
	return series.Sample{}, false
}

// newest is when the newest of the observation's readings was measured; zero
// if there is none.
func newest(o *scale.Observation) (at time.Time) {
	look := func(readings []scale.Reading) {
		for _, r := range readings {
			if r.OK && r.At.After(at) {
				at = r.At
			}
		}
	}
	look(o.Totals)
	for i := range o.Pods {
		look(o.Pods[i].Readings)
	}
	return at
}

// Finished says whether all of the pod's containers have ended for good: it is
// no replica any more, whoever still lists it.
func Finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PhaseOf says what the pod is worth as a replica, and since when.
//
// A starting pod's time begins with its creation, or where that was later when
// a node took it or when it last ceased to be ready: a pod that waited an hour
// for a node has not been loading its model for an hour.
func PhaseOf(pod *corev1.Pod) (scale.Phase, time.Time) {
	created := pod.CreationTimestamp.Time
	if pod.DeletionTimestamp != nil {
		return scale.Terminating, pod.DeletionTimestamp.Time
	}
	since := created
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		at := c.LastTransitionTime.Time
		switch {
		case c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue:
			return scale.Serving, at
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && held(c.Reason):
			return scale.Unschedulable, at
		case c.Type == corev1.PodReady, c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			if at.After(since) {
				since = at
			}
		}
	}
	return scale.Starting, since
}

// held says whether a pod that is not scheduled for this reason is no capacity
// on the way: no node takes it, or a gate keeps it from being offered to one.
func held(reason string) bool {
	return reason == corev1.PodReasonUnschedulable || reason == corev1.PodReasonSchedulingGated
}
