// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/history"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// minuteKind is the kind of a GPUAutoscaler's minutes.
const minuteKind = "GPUAutoscaler"

// The metrics of each GPUAutoscaler.
const (
	minuteCurrent       = history.Metric(history.GroupReplicas + "/current")
	minuteDesired       = history.Metric(history.GroupReplicas + "/desired")
	minuteServing       = history.Metric(history.GroupReplicas + "/serving")
	minuteStarting      = history.Metric(history.GroupReplicas + "/starting")
	minuteUnschedulable = history.Metric(history.GroupReplicas + "/unschedulable")
	minuteAllocated     = history.Metric(history.GroupGPUs + "/allocated")
)

// sampleInterval is the time between two readings of what a decision does not read:
// fields of GPUs, and the parts of signals. A decision's own values are added as it is
// made.
const sampleInterval = 15 * time.Second

// signalMetrics are the metrics of a plan's signals, so that a decision makes no names.
type signalMetrics struct{ value, requests history.Metric }

func newSignalMetrics(p *scale.Policy) []signalMetrics {
	out := make([]signalMetrics, 0, len(p.Signals))
	for i := range p.Signals {
		name := p.Signals[i].Name
		out = append(out, signalMetrics{history.NewMetric(history.GroupSignal, name), history.NewMetric(history.GroupRequests, name)})
	}
	return out
}

// recordReading adds a decision to the current minute. w.mu is held.
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
			w.minute.Add(r.at, r.plan.metrics[i].value, in.Value, float64(in.Fresh))
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
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if begun := now.Truncate(time.Minute); begun.After(minute) {
			c.recordMinute(minute)
			minute = begun
		}
		c.sampleMinute(now)
	}
}

// recordMinute records the minute that began at at.
func (c *Controller) recordMinute(at time.Time) {
	workloads := c.allWorkloads()
	c.deps.RecordMinute(at, func(add func(history.Workload, []history.Value)) {
		for _, w := range workloads {
			w.mu.Lock()
			values := w.minute.Take(at)
			if len(values) > 0 {
				add(history.Workload{Namespace: w.key.Namespace, Kind: minuteKind, Name: w.key.Name}, values)
			}
			w.mu.Unlock()
		}
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

// sampleMinute reads the GPUs of all workloads, and the parts of their signals.
func (c *Controller) sampleMinute(now time.Time) {
	fields := c.fieldsInUse(now)
	for _, w := range c.allWorkloads() {
		sel := w.selector.Load()
		if sel == nil {
			continue
		}
		var serving []*corev1.Pod
		allocated := 0
		for _, pod := range c.deps.Pods.Select(w.key.Namespace, *sel) {
			if Finished(pod) || pod.Spec.NodeName == "" {
				continue
			}
			if n, known := c.devices.podDevices(pod); known {
				allocated += n
			}
			if isServing(pod) {
				serving = append(serving, pod)
			}
		}
		w.mu.Lock()
		w.minute.Add(now, minuteAllocated, float64(allocated), math.NaN())
		w.sampleFields(now, serving, fields)
		w.sampleTerms(now, serving)
		w.mu.Unlock()
	}
}

// sampleFields adds the mean and the maximum over the serving pods of each field in use.
// w.mu is held.
func (w *workload) sampleFields(now time.Time, serving []*corev1.Pod, fields gpu.FieldSet) {
	values := verifiedValues{w.shared.deps.Store, w.shared.devices}
	for i, f := range gpu.Fields() {
		if !fields.Has(gpu.Index(i)) {
			continue
		}
		n, total, most := 0, 0.0, math.Inf(-1)
		for _, pod := range serving {
			if s, ok := values.Field(pod, f.ID, now, w.shared.cfg.MaxAge); ok {
				n, total, most = n+1, total+s.Value, max(most, s.Value)
			}
		}
		if n > 0 {
			w.minute.AddMax(now, fieldMetric(f.Name), total/float64(n), most, float64(n))
		}
	}
}

// Minutes returns the one-minute aggregates of one GPUAutoscaler, also of one that was
// deleted since.
func (c *Controller) Minutes(namespace, name string, q *webui.MinuteQuery) (webui.Minutes, bool, error) {
	if c.deps.History != nil {
		m, ok, err := webui.ReadMinutes(c.deps.History, history.Workload{Namespace: namespace, Kind: minuteKind, Name: name}, q)
		if ok {
			return m, true, err
		}
	}
	_, known := c.History(namespace, name)
	return webui.Minutes{First: q.From, Step: q.Step, Metrics: []webui.MinuteMetric{}}, known, nil
}

// fieldMetric returns the metric of a field, by its name in dcgm-exporter 4.8.
func fieldMetric(name string) history.Metric { return history.NewMetric(history.GroupGPU, name) }

// sampleTerms adds the sum over the serving pods of each metric that signals read, such
// as the running and the waiting requests of a server. A sum is absent if a pod has no
// value. w.mu is held.
func (w *workload) sampleTerms(now time.Time, serving []*corev1.Pod) {
	p := w.plan.Load()
	if p == nil || len(serving) == 0 {
		return
	}
	reader := podReader{verifiedValues{w.shared.deps.Store, w.shared.devices}, now, p.Policy.MaxAge}
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Pods {
			continue
		}
		for _, term := range p.Sources[i].Terms {
			total := 0.0
			for _, pod := range serving {
				s, ok := reader.readTerm(pod, term)
				if !ok {
					total = math.NaN()
					break
				}
				total += s.Value
			}
			w.minute.Add(now, history.NewMetric(history.GroupPods, term[0].Key()), total, float64(len(serving)))
		}
	}
}
