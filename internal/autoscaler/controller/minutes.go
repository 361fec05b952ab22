// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// namespaceKind is the kind of a namespace's minutes.
const namespaceKind = "Namespace"

// The metrics of each GPUAutoscaler.
const (
	minuteCurrent       = history.Metric(history.GroupReplicas + "/current")
	minuteDesired       = history.Metric(history.GroupReplicas + "/desired")
	minuteServing       = history.Metric(history.GroupReplicas + "/serving")
	minuteStarting      = history.Metric(history.GroupReplicas + "/starting")
	minuteUnschedulable = history.Metric(history.GroupReplicas + "/unschedulable")
	minuteAllocated     = history.Metric(history.GroupGPUs + "/allocated")
)

// minuteActive is the active GPUs of a workload or a namespace; zero if none is.
const minuteActive = history.Metric(history.GroupGPUs + "/active")

// sampleInterval is the time between two readings of what a decision does not read:
// aggregates of GPUs, and the parts of signals. A decision's own values are added as it is
// made.
const sampleInterval = 15 * time.Second

// maxSignalName bounds the name of a signal and of a pods' metric on /metrics and in the
// history, in bytes.
const maxSignalName = history.MaxSignal

// signalMetrics are the names of a plan's signal, so that a decision makes none.
type signalMetrics struct {
	name                              string // on /metrics; unique in the plan
	perReplica, perWorkload, requests history.Metric
}

// newSignalMetrics names the signals of a policy. Tenants choose the names: if two are
// equal once they are cut, the later one is numbered.
func newSignalMetrics(p *scale.Policy) []signalMetrics {
	out := make([]signalMetrics, 0, len(p.Signals))
	used := map[string]bool{}
	for i := range p.Signals {
		name, unit := excerpt.Of(p.Signals[i].Name, maxSignalName), p.Signals[i].Unit
		for n := 2; used[name]; n++ {
			name = fmt.Sprintf("%s (%d)", excerpt.Of(p.Signals[i].Name, maxSignalName-len(" (999)")), n)
		}
		used[name] = true
		out = append(out, signalMetrics{
			name, history.NewSignal(name, unit, scopeOf(false)), history.NewSignal(name, unit, scopeOf(true)),
			history.NewMetric(history.GroupRequests, name),
		})
	}
	return out
}

// recordReading adds a decision to the current minute, after w.measures has it. w.mu is
// held.
func (w *workload) recordReading(r *report) {
	d, no := r.decision, math.NaN()
	for _, x := range []struct {
		m history.Metric
		n int32
	}{
		{minuteCurrent, d.Current},
		{minuteDesired, d.Replicas},
		{minuteServing, d.Serving},
		{minuteStarting, d.Starting},
		{minuteUnschedulable, d.Unschedulable},
	} {
		w.minute.Add(r.at, x.m, float64(x.n), no)
	}
	for i := range min(len(d.Inputs), len(r.plan.metrics)) {
		if in := &d.Inputs[i]; in.Fresh > 0 {
			m := r.plan.metrics[i].perReplica
			if i < len(w.measures.signals) && w.measures.signals[i].valueIsTotal {
				m = r.plan.metrics[i].perWorkload
			}
			w.minute.Add(r.at, m, in.Value, float64(in.Fresh))
		}
		if i < len(r.requests) {
			w.minute.Add(r.at, r.plan.metrics[i].requests, r.requests[i], float64(d.Serving))
		}
	}
}

// requestRates returns the requests/s of each signal at all serving pods. A rate is NaN
// if one of them has none: a partial sum looks like a lower load.
func requestRates(o *scale.Observation) (rates []float64) {
	for i := range o.Pods {
		p := &o.Pods[i]
		if p.Phase != scale.Serving {
			continue
		}
		if rates == nil {
			rates = make([]float64, len(p.Arrivals))
		}
		for j := range rates {
			if j >= len(p.Arrivals) || !p.Arrivals[j].OK {
				rates[j] = math.NaN()
				continue
			}
			rates[j] += p.Arrivals[j].Value
		}
	}
	return rates
}

// recordMinutes samples all workloads every sampleInterval, and records each minute
// after its end, until ctx is done.
func (c *Controller) recordMinutes(ctx context.Context) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	minute := time.Now().Truncate(time.Minute)
	groups := &groupMinutes{groups: map[usage.Group]*history.Accumulator{}}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if begun := now.Truncate(time.Minute); begun.After(minute) {
			c.recordMinute(minute, groups)
			minute = begun
		}
		c.sampleMinute(now)
		if c.deps.Aggregates != nil {
			groups.sample(c.deps.Aggregates.Last())
		}
	}
}

// recordMinute records the minute that began at at.
func (c *Controller) recordMinute(at time.Time, groups *groupMinutes) {
	workloads := c.allWorkloads()
	c.deps.RecordMinute(at, func(add func(history.Workload, []history.Value)) {
		for _, w := range workloads {
			w.mu.Lock()
			values := w.minute.Take(at)
			if len(values) > 0 {
				add(history.Workload{Namespace: w.key.Namespace, Kind: view.AutoscalerKind, Name: w.key.Name}, values)
			}
			w.mu.Unlock()
		}
		groups.record(at, add)
	})
}

func (c *Controller) allWorkloads() []*workload {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*workload, 0, len(c.workloads))
	for _, w := range c.workloads {
		out = append(out, w)
	}
	return out
}

// sampleMinute counts the GPUs of all GPUAutoscalers, and reads the parts of their
// signals.
func (c *Controller) sampleMinute(now time.Time) {
	for _, w := range c.allWorkloads() {
		sel := w.selector.Load()
		if sel == nil {
			continue
		}
		var serving []*corev1.Pod
		allocated := 0
		for _, pod := range c.deps.Pods.Select(w.key.Namespace, *sel) {
			if replica.Finished(pod) || pod.Spec.NodeName == "" {
				continue
			}
			if n, known := c.deps.Devices.OfPod(pod); known {
				allocated += n
			}
			if replica.Serving(pod) {
				serving = append(serving, pod)
			}
		}
		w.mu.Lock()
		w.measures.sampled = sampledMeasures{at: now, gpus: allocated}
		w.minute.Add(now, minuteAllocated, float64(allocated), math.NaN())
		w.sampleTerms(now, serving)
		w.mu.Unlock()
	}
}

// groupMinutes are the current minutes of the GPUs of workloads and namespaces.
type groupMinutes struct {
	sampled time.Time // the last aggregates
	groups  map[usage.Group]*history.Accumulator
}

// of returns the minute of a group; nil for the cluster, which is not in the history, and
// for the groups that /metrics leaves out. A pod's owner reference may name any kind: it
// must not take the minutes of a GPUAutoscaler or a namespace.
func (g *groupMinutes) of(a *usage.Aggregates, k usage.Group) *history.Accumulator {
	if k.Namespace == "" || !a.Shown[k] || k.Kind == view.AutoscalerKind || k.Kind == namespaceKind {
		return nil
	}
	m := g.groups[k]
	if m == nil {
		m = &history.Accumulator{}
		g.groups[k] = m
	}
	return m
}

// record records the minute that began at at. Groups without one are forgotten.
func (g *groupMinutes) record(at time.Time, add func(history.Workload, []history.Value)) {
	for k, m := range g.groups {
		values := m.Take(at)
		if len(values) == 0 {
			delete(g.groups, k)
			continue
		}
		w := history.Workload{Namespace: k.Namespace, Kind: k.Kind, Name: k.Name}
		if k.Name == "" {
			w.Kind, w.Name = namespaceKind, k.Namespace
		}
		add(w, values)
	}
}

// sample adds the aggregates of the GPUs of workloads and namespaces.
func (g *groupMinutes) sample(a *usage.Aggregates) {
	if !a.At.After(g.sampled) {
		return // as in the last sample
	}
	g.sampled = a.At
	for i := range a.Items {
		x := &a.Items[i]
		f, ok := gpu.Lookup(x.Field)
		m := g.of(a, x.Group)
		if !ok || m == nil {
			continue
		}
		for _, s := range []struct {
			group string
			stats *usage.Stats
		}{{history.GroupGPU, &x.Allocated}, {history.GroupActive, &x.Active}} {
			if s.stats.GPUs > 0 {
				m.AddMax(a.At, history.NewMetric(s.group, f.Name), s.stats.Mean, s.stats.Max, float64(s.stats.GPUs))
			}
		}
		if x.Field == gpu.GPUUtil {
			m.Add(a.At, minuteActive, float64(x.Active.GPUs), math.NaN())
		}
	}
	for k, n := range a.GPUs {
		if m := g.of(a, k); m != nil {
			m.Add(a.At, minuteAllocated, float64(n), math.NaN())
		}
	}
}

// Minutes returns the one-minute aggregates of one GPUAutoscaler, workload or namespace,
// also of one that was deleted since.
func (c *Controller) Minutes(namespace, name string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	if c.deps.History != nil {
		m, ok, err := view.ReadMinutes(c.deps.History, history.Workload{Namespace: namespace, Kind: q.Kind, Name: name}, q)
		if ok {
			return m, true, err
		}
	}
	_, known := c.History(namespace, name)
	known = known && q.Kind == view.AutoscalerKind
	return view.Minutes{First: q.From, Step: q.Step, Metrics: []view.MinuteMetric{}}, known, nil
}

// sampleTerms adds the sum over the serving pods of each metric that signals read, such
// as the running and the waiting requests of a server. A sum is absent if a pod has no
// value. w.mu is held.
func (w *workload) sampleTerms(now time.Time, serving []*corev1.Pod) {
	p := w.plan.Load()
	if p == nil || len(serving) == 0 {
		return
	}
	reader := podReader{trust.Values{Store: w.shared.deps.Store, Devices: w.shared.deps.Devices}, now, p.Policy.MaxAge}
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Pods {
			continue
		}
		for _, term := range p.Sources[i].Terms {
			name := excerpt.Of(term[0].Key(), maxSignalName)
			if w.measures.sampled.has(name) {
				continue // of another signal
			}
			total := 0.0
			for _, pod := range serving {
				s, ok := reader.readTerm(pod, term)
				if !ok {
					total = math.NaN()
					break
				}
				total += s.Value
			}
			if !math.IsNaN(total) {
				w.measures.sampled.sums = append(w.measures.sampled.sums, podsSum{name, total})
			}
			w.minute.Add(now, history.NewMetric(history.GroupPods, name), total, float64(len(serving)))
		}
	}
}
