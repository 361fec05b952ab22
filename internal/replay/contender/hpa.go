// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// HPASettings are the settings of a HorizontalPodAutoscaler, or of KEDA if the metric is an
// external one.
type HPASettings struct {
	Kind      peers.Kind
	Signal    service.Signal
	Target    float64
	Window    int // scale-down stabilisation, in seconds
	Tolerance float64
	Lag       Lag
}

// NewHPA returns the autoscaler with these settings.
func NewHPA(s HPASettings) Entry {
	family, class := HPA, OnRequests
	if s.Signal.OfGPU() {
		class = OnGPU
	}
	if s.Kind == peers.ExternalAverage {
		family = KEDA
	}
	return Entry{
		Name: fmt.Sprintf("%s-%s %s=%g %ds tol=%g %s", family, [...]string{"pods", "object", "external"}[s.Kind],
			s.Signal, s.Target, s.Window, s.Tolerance, s.Lag.Name),
		Family: family, Class: class,
		New: func(r *Replay) (service.Autoscaler, error) {
			up, down := peers.DefaultUp(), peers.DefaultDown()
			up.Tolerance, down.Tolerance, down.Window = s.Tolerance, s.Tolerance, s.Window
			return &hpa{
				model:  peers.HPA{Kind: s.Kind, MilliTarget: milli(s.Target), Min: r.Min, Max: r.Max, Up: up, Down: down},
				signal: s.Signal, lag: s.Lag.withPhases(r.Seed),
			}, nil
		},
	}
}

// hpa is a HorizontalPodAutoscaler of the simulated service. It is also KEDA: above zero
// replicas KEDA is an HPA on an external metric. Its polling, activation and cooldown only
// matter at zero.
type hpa struct {
	model  peers.HPA
	signal service.Signal
	lag    Lag

	reading peers.Reading
}

// Decide implements service.Autoscaler.
func (h *hpa) Decide(d *service.Deployment, now int) (int, []string) {
	if !h.lag.syncs(now) {
		return service.Unchanged, nil
	}
	h.read(d, d.At(h.lag.measuredAt(now)))
	return h.model.Sync(now, &h.reading), nil
}

// read combines the HPA's two sources: the current pods from the API server, and older
// values from the metrics API. A draining pod accepts no requests, so it is not ready.
func (h *hpa) read(d *service.Deployment, s *service.Snapshot) {
	r := &h.reading
	r.Spec = d.Replicas()
	r.Status, _ = d.Live()
	r.Pods = r.Pods[:0]
	for _, p := range d.Pods() {
		pod := peers.Pod{Terminating: p.Phase >= service.Draining, Pending: p.Phase <= service.Pulling, Ready: p.Phase == service.Serving}
		if h.model.Kind == peers.PodsAverage {
			v, ok := d.Collected(s, s.Of(p.ID), h.signal, h.lag.Collect)
			pod.HasSample, pod.Milli = ok, milli(v)
		}
		r.Pods = append(r.Pods, pod)
	}
	switch h.model.Kind {
	case peers.ObjectValue: // the mean over the pods that report a value
		sum, n := d.Total(s, h.signal, h.lag.Collect)
		r.Milli, r.HasValue = milli(sum/math.Max(1, float64(n))), n > 0
	case peers.ExternalAverage: // KEDA reads zero if no pod reports a value (ignoreNullValues)
		sum, _ := d.Total(s, h.signal, h.lag.Collect)
		r.Milli, r.HasValue = milli(sum), true
	}
}

// milli returns a value in whole thousandths, rounded down, as the metrics APIs do.
func milli(v float64) int64 { return int64(v * 1000) }
