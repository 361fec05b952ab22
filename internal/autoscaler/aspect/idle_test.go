// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/autoscaler/observe"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// requests are those in flight at the pod; negative: its server does not tell.
type requests struct {
	trust.Values
	n float64
}

func (r requests) PodMetric(string, string, string, time.Time, time.Duration) (series.Sample, bool) {
	return series.Sample{At: time.Now(), Value: r.n}, r.n >= 0
}

func TestUse(t *testing.T) {
	now := time.Now()
	const inUse, unused, unknown = 1, 0, -1
	f := func(want float64, what string, gpus string, counted bool, inFlight, arrivals float64, devices ...map[gpu.FieldID]float64) {
		t.Helper()
		store := series.New(series.Config{})
		p := podtest.Pod("web", "a", now.Add(-time.Hour), podtest.Ready(now.Add(-time.Hour)), podtest.Containers(podtest.Container(podtest.GPUResource, gpus)))
		var all []podtest.Device
		for i, v := range devices {
			all = append(all, podtest.Device{Name: "GPU-" + string(rune('0'+i)), Owner: p, Values: v})
		}
		podtest.Expose(t, store, "agent", series.TargetLabels{Node: "node-1"}, now, all...)
		v := trust.Values{Store: store, Devices: trust.NewDevices(nil)}
		r := useReader{Store: store, Devices: v.Devices, Pods: observe.Reader{Values: requests{v, inFlight}, Now: now, MaxAge: 5 * time.Second}}
		list := podtest.List{Pods: []*corev1.Pod{p}}
		units := replica.UnitsOf(&list, "ns", labels.Everything())
		var sources []policy.Source
		if counted {
			sources = []policy.Source{{Kind: policy.Pods, InFlight: []policy.Term{{policy.PodMetric{Name: "running"}}}}}
		}
		o := scale.Observation{Pods: []scale.Replica{{Name: "a", Arrivals: []scale.Reading{{Value: arrivals, At: now, OK: true}}}}}
		r.Read(&o, &units, sources)
		got := o.Pods[0].Used.Value
		if !o.Pods[0].Used.OK {
			got = unknown
		}
		if got > 0 {
			got = inUse
		}
		if got != want {
			t.Errorf("%s: %+v, want %v", what, o.Pods[0].Used, want)
		}
	}
	type device = map[gpu.FieldID]float64
	idle, busy, mig := device{gpu.GPUUtil: 0}, device{gpu.GPUUtil: 1}, device{gpu.GREngineActive: 0.0002}
	f(unused, "an idle GPU", "1", false, 0, 0, idle)
	f(inUse, "a GPU that is hardly active", "1", false, 0, 0, busy)
	f(inUse, "one of two", "2", false, 0, 0, idle, busy)
	f(unknown, "one of two that the exporter does not tell of", "2", false, 0, 0, idle)
	f(unknown, "more GPUs than the pod asks for", "1", false, 0, 0, idle, idle)
	f(unknown, "a GPU without utilisation", "1", false, 0, 0, device{gpu.FBUsed: 7})
	f(unused, "a MIG instance", "1", false, 0, 0, mig)
	f(inUse, "a MIG instance that is active", "1", false, 0, 0, device{gpu.GREngineActive: 0.02})
	f(unused, "an idle server", "1", true, 0, 0, idle)
	f(inUse, "a request in flight", "1", true, 1, 0, idle)
	f(inUse, "requests that come and go", "1", true, 0, 0.2, idle)
	f(unknown, "a server that does not tell", "1", true, -1, 0, idle)
	f(inUse, "such a server with an active GPU", "1", true, -1, 0, busy)
	f(inUse, "a request, and no value of the GPU", "1", true, 1, 0)
	f(unknown, "a pod without GPUs whose requests nobody counts", "0", false, 0, 0)
	f(unused, "a pod without GPUs and without requests", "0", true, 0, 0)
}
