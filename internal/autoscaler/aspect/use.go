// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

const (
	// lookBack is how far back values count, so that use between two decisions is seen.
	lookBack = 5 * time.Second
	// idleRatio is the share of the time up to which the engines of a MIG instance are idle:
	// DCGM reports less than a thousandth for one that does nothing.
	idleRatio = 0.005
)

// ActivityFields are the GPUs' fields that say whether they are active: the first that a GPU has. MIG
// instances have no utilisation.
var ActivityFields = []gpu.FieldID{gpu.GPUUtil, gpu.GREngineActive}

// useReader reads whether replicas are in use at one moment.
type useReader struct {
	Store   *series.Store
	Devices *trust.Devices
	Pods    observe.Reader
}

// Read sets Used of the observation's replicas. It is absent for a replica of which a GPU has
// no value, or whose server counts requests and shows none: missing is not idle.
func (v useReader) Read(o *scale.Observation, units *replica.Units, sources []policy.Source) {
	members := map[string][]*corev1.Pod{}
	for i, pod := range units.Pods {
		members[pod.Name] = units.Members(i)
	}
	for i := range o.Pods {
		r := &o.Pods[i]
		r.Used = v.gpusOf(members[r.Name])
		for k := range r.Arrivals { // a request may come and go between two readings
			if a := &r.Arrivals[k]; a.OK && a.Value > 0 {
				r.Used = either(r.Used, scale.Reading{Value: 1, At: a.At, OK: true})
			}
		}
		for k := range sources {
			if len(sources[k].InFlight) > 0 && len(members[r.Name]) > 0 {
				r.Used = either(r.Used, v.Pods.RequestsOf(members[r.Name][0], &sources[k]))
			}
		}
		if r.Used.At.IsZero() {
			r.Used.OK = false // neither GPUs nor requests
		}
	}
}

// gpusOf returns whether a GPU of these pods is active. Its time is zero if they hold none.
func (v useReader) gpusOf(pods []*corev1.Pod) (out scale.Reading) {
	out.OK = len(pods) > 0
	for _, pod := range pods {
		n, known := v.Devices.InUse(pod)
		if known && n == 0 {
			continue
		}
		out = either(out, v.gpusOfPod(pod, n, known))
	}
	return out
}

// gpusOfPod returns whether one of the n GPUs of a pod is active.
func (v useReader) gpusOfPod(pod *corev1.Pod, n int, known bool) scale.Reading {
	holder := v.Devices.Holder(pod)
	var seen map[string]scale.Reading
	for _, f := range ActivityFields {
		var w series.Window
		r := v.Store.FieldReader(f, v.Pods.Now, v.Pods.MaxAge)
		r.WindowOn(&w, &holder, v.Pods.Now.Add(-lookBack))
		if seen == nil {
			seen = make(map[string]scale.Reading, len(w.Devices))
		}
		for i := range w.Devices {
			d := &w.Devices[i]
			newest, ok := d.Newest()
			if _, done := seen[d.Device]; done || !ok {
				continue
			}
			x := scale.Reading{At: newest.At, OK: true, MaxAge: w.MaxAge}
			for _, s := range d.Samples {
				if isActive(f, s.Value) {
					x.Value = 1
				}
			}
			seen[d.Device] = x
		}
	}
	out := scale.Reading{OK: true}
	for _, x := range seen {
		out = either(out, x)
	}
	if out.Value == 0 && (!known || len(seen) < n) {
		return scale.Reading{} // a GPU without a value may be active
	}
	return out
}

func isActive(f gpu.FieldID, v float64) bool {
	if f == gpu.GREngineActive {
		return v > idleRatio
	}
	return gpu.IsActive(v)
}

// either combines two readings: what is in use is so whatever else is not known. A zero time
// means that there is nothing to read.
func either(a, b scale.Reading) scale.Reading {
	switch {
	case a.OK && a.Value > 0:
		return a
	case b.OK && b.Value > 0:
		return b
	case !a.OK || !b.OK:
		return scale.Reading{}
	case a.At.IsZero() || !b.At.IsZero() && b.At.Before(a.At):
		return b
	}
	return a
}
