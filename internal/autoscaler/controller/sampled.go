// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// sampleInterval is the time between two readings of what a decision does not read: the
// GPUs of workloads, and the parts of signals.
const sampleInterval = 15 * time.Second

// sampleWorkloads samples all workloads every sampleInterval until ctx is done.
func (c *Controller) sampleWorkloads(ctx context.Context) {
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.sample(now)
		}
	}
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

// eachMetered calls yield for what /metrics shows of each GPUAutoscaler.
func (c *Controller) eachMetered(yield func(types.NamespacedName, *meters.Workload)) {
	for _, w := range c.allWorkloads() {
		w.mu.Lock()
		f := w.flaws.Load()
		w.metered.MalformedSpec, w.metered.MalformedStatus = f.spec != nil, f.status != nil
		yield(w.key, &w.metered)
		w.mu.Unlock()
	}
}

// sample counts the GPUs of all GPUAutoscalers, and reads the parts of their signals.
func (c *Controller) sample(now time.Time) {
	for _, w := range c.allWorkloads() {
		sel := w.selector.Load()
		if sel == nil {
			continue
		}
		var serving []*corev1.Pod
		allocated := 0
		units := replica.UnitsOf(c.deps.Pods, w.key.Namespace, *sel)
		for _, pod := range units.All() {
			if replica.Finished(pod) || pod.Spec.NodeName == "" {
				continue
			}
			if n, known := c.deps.Devices.OfPod(pod); known {
				allocated += n
			}
			if replica.Serving(pod) && !replica.IsWorker(pod) {
				serving = append(serving, pod)
			}
		}
		w.mu.Lock()
		w.metered.Sampled = meters.Sampled{At: now, GPUs: allocated}
		w.sampleTerms(now, serving)
		w.recordMinute(now, w.metered.SampledReadings())
		w.mu.Unlock()
	}
}

// countPods counts the target's serving and starting pods.
func (w *workload) countPods(t *target.Target) (serving, starting int32) {
	for _, pod := range replica.UnitsOf(w.shared.deps.Pods, w.key.Namespace, t.Selector).Pods {
		if replica.Finished(pod) {
			continue
		}
		switch phase, _ := replica.PhaseOf(pod); phase {
		case scale.Serving:
			serving++
		case scale.Starting:
			starting++
		}
	}
	return serving, starting
}

// sampleTerms adds the sum over the serving pods of each metric that signals read, such
// as the running and the waiting requests of a server. A sum is absent if a pod has no
// value. w.mu is held.
func (w *workload) sampleTerms(now time.Time, serving []*corev1.Pod) {
	p := w.plan.Load()
	if p == nil || len(serving) == 0 {
		return
	}
	reader := w.shared.readerAt(now, p.Policy.MaxAge)
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Pods {
			continue
		}
		for _, term := range p.Sources[i].Terms {
			name := excerpt.Of(term[0].Key(), meters.MaxSignalName)
			if w.metered.Sampled.Has(name) {
				continue // of another signal
			}
			total := 0.0
			for _, pod := range serving {
				s, ok := reader.ReadTerm(pod, term)
				if !ok {
					total = math.NaN()
					break
				}
				total += s.Value
			}
			if !math.IsNaN(total) {
				w.metered.Sampled.Sums = append(w.metered.Sampled.Sums, meters.Sum{Metric: name, Value: total})
			}
		}
	}
}

// readerAt reads values of pods that are not older than maxAge.
func (s *shared) readerAt(now time.Time, maxAge time.Duration) observe.Reader {
	return observe.Reader{Values: trust.Values{Store: s.deps.Store, Devices: s.deps.Devices}, Now: now, MaxAge: maxAge, Holds: s.deps.Devices.MostOfPod}
}

// Minutes takes readings of which the history keeps minutes. They are not retained.
type Minutes interface {
	Add(at time.Time, w history.Workload, readings []history.Value)
}

// recordMinute adds readings to the current minute. w.mu is held.
func (w *workload) recordMinute(at time.Time, readings []history.Value) {
	if w.shared.deps.Minutes != nil {
		of := history.Workload{Namespace: w.key.Namespace, Kind: history.KindAutoscaler, Name: w.key.Name}
		w.shared.deps.Minutes.Add(at, of, readings)
	}
}

// recordReading adds a decision to the current minute, after w.metered has it. w.mu is
// held.
func (w *workload) recordReading(r *pass) {
	list := w.metered.Readings(w.readings[:0], r.Decision, r.plan.metrics)
	w.recordMinute(r.At, list)
	w.readings = list
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
