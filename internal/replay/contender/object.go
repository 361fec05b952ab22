// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// HPAObject has the settings of one HorizontalPodAutoscaler, or of the one that KEDA makes
// of a ScaledObject.
type HPAObject struct {
	Name     string
	Family   Family // HPA or KEDA
	Metrics  []HPAMetric
	Min, Max int // replicas; Min is at least 1
	Up, Down peers.Rules
}

// HPAMetric is a metric of an HPAObject.
type HPAMetric struct {
	Kind   peers.Kind
	Source policy.Source // of one pod's value
	Target float64       // in the unit of Source
	// Mean is true if a value of an object or an external metric is the mean over the
	// pods; else it is their sum.
	Mean bool
	// ZeroIfMissing is true if no pod with a value means 0, as in KEDA.
	ZeroIfMissing bool
}

// NewHPAObject returns the autoscaler with the settings of an object. Its metrics come
// with the lag of the usual chain at default settings: an exporter every 30 s (GPUs only),
// Prometheus every 30 s, and a sync every 15 s.
func NewHPAObject(o HPAObject) (Entry, error) {
	sources := make([]source, len(o.Metrics))
	class := OnGPU
	for i := range o.Metrics {
		s, err := newSource(o.Metrics[i].Source)
		if err != nil {
			return Entry{}, fmt.Errorf("%s: metrics[%d]: %w", o.Name, i, err)
		}
		if sources[i] = s; o.Metrics[i].Source.Kind != policy.GPU {
			class = OnRequests
		}
	}
	if len(sources) == 0 {
		return Entry{}, fmt.Errorf("%s: no metric that can be simulated", o.Name)
	}
	return Entry{
		Name: o.Name, Family: o.Family, Class: class, Given: true,
		New: func(r *Replay) (service.Autoscaler, error) { return o.simulate(r, sources), nil },
	}, nil
}

// RulesOf returns the rules of an HPA with a policy's behavior; defaults are those of the
// API server.
func RulesOf(r *scale.Rules, isSet bool, defaults peers.Rules) peers.Rules {
	if !isSet {
		return defaults
	}
	out := defaults
	if r.Tolerance >= 0 {
		out.Tolerance = r.Tolerance
	}
	if r.Window >= 0 {
		out.Window = int(r.Window / time.Second)
	}
	out.Select = map[scale.Select]peers.Select{scale.SelectMax: peers.MaxChange, scale.SelectMin: peers.MinChange, scale.SelectDisabled: peers.Disabled}[r.Select]
	if len(r.Policies) > 0 {
		out.Policies = nil
		for _, p := range r.Policies {
			out.Policies = append(out.Policies, peers.RatePolicy{Percent: p.Percent, Value: int(p.Value), Period: int(p.Period / time.Second)})
		}
	}
	return out
}

func (o *HPAObject) simulate(r *Replay, sources []source) *hpaObject {
	low, high := r.Min, r.Max
	if !r.Scaled {
		low = min(max(low, o.Min), high)
		high = max(low, min(high, o.Max))
	}
	h := &hpaObject{
		model: peers.HPA{Min: low, Max: high, Up: o.Up, Down: o.Down}, settings: o.Metrics, sources: sources,
		metrics: make([]peers.Metric, len(sources)), readings: make([]peers.Reading, len(sources)),
	}
	for i, m := range o.Metrics {
		h.metrics[i] = peers.Metric{Kind: m.Kind, MilliTarget: milli(m.Target)}
		lag := podLag()
		if m.Source.Kind == policy.GPU {
			if lag = gpuRuleLag(); m.Kind == peers.PodsAverage {
				lag = gpuLag()
			}
		}
		h.lags = append(h.lags, lag.withPhases(r.Seed))
	}
	return h
}

// hpaObject is an HPAObject of the simulated service.
type hpaObject struct {
	model    peers.HPA
	settings []HPAMetric
	sources  []source
	lags     []Lag // the sync of the first one counts

	metrics  []peers.Metric
	readings []peers.Reading
}

// Decide implements service.Autoscaler.
func (h *hpaObject) Decide(d *service.Deployment, now int) (int, []string) {
	if !h.lags[0].syncs(now) {
		return service.Unchanged, nil
	}
	for i := range h.sources {
		h.read(i, d, d.At(h.lags[i].measuredAt(now)))
	}
	return h.model.SyncAll(now, h.metrics, h.readings), nil
}

// read reads one metric.
func (h *hpaObject) read(i int, d *service.Deployment, s *service.Snapshot) {
	r, m := &h.readings[i], &h.settings[i]
	r.Spec = d.Replicas()
	r.Status, _ = d.Live()
	r.Pods = r.Pods[:0]
	sum, n := 0.0, 0
	for _, p := range d.Pods() {
		pod := peers.Pod{Terminating: p.Phase >= service.Draining, Pending: p.Phase <= service.Pulling, Ready: p.Phase == service.Serving}
		v, ok := h.sources[i].value(s.Of(p.ID))
		if ok {
			sum, n = sum+v, n+1
		}
		if m.Kind == peers.PodsAverage {
			pod.HasSample, pod.Milli = ok, milli(v)
		}
		r.Pods = append(r.Pods, pod)
	}
	if m.Mean {
		sum /= math.Max(1, float64(n))
	}
	r.Milli, r.HasValue = milli(sum), n > 0 || m.ZeroIfMissing
}
