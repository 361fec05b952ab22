// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/podtest"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// shownSeries lists the series of /metrics with their values, which the history continues.
func shownSeries(t *testing.T, collectors ...prometheus.Collector) map[string]string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(collectors...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out, names := map[string]string{}, NewMinuteSeries().Names()
	for _, f := range families {
		if !slices.Contains(names, f.GetName()) {
			continue
		}
		for _, m := range f.GetMetric() {
			pairs := map[string]string{}
			for _, l := range m.GetLabel() {
				pairs[l.GetName()] = l.GetValue()
			}
			out[fmt.Sprint(f.GetName(), pairs)] = fmt.Sprintf("%.4g", m.GetGauge().GetValue())
		}
	}
	return out
}

// continued lists the series that minutes continue.
func continued(minutes map[history.Workload]map[history.Metric]history.Value) map[string]string {
	out := map[string]string{}
	for w, values := range minutes {
		for m, v := range values {
			NewMinuteSeries().Each(w, m, func(string) bool { return true }, func(s history.Series) {
				pairs := map[string]string{}
				for i := 0; i < len(s.Labels); i += 2 {
					pairs[s.Labels[i]] = s.Labels[i+1]
				}
				out[fmt.Sprint(s.Name, pairs)] = fmt.Sprintf("%.4g", s.Stat.Of(&v)*s.Scale)
			})
		}
	}
	return out
}

// Each series of /metrics that the history continues is in a minute of the same readings,
// with the same labels and value, and no other.
func TestTheHistoryContinuesTheSeriesOfMetrics(t *testing.T) {
	r := newRig(t, deployment("web", 4), autoscaler("web"))
	since := r.now.Add(-time.Hour)
	r.pods.Pods = []*corev1.Pod{pod("web", "a", since, ready(since)), pod("web", "b", since, ready(since))}
	for i, p := range r.pods.Pods {
		podtest.Expose(t, r.store, fmt.Sprint("agent-", i), series.TargetLabels{Node: "node-1"}, r.now, podtest.Device{
			Name: "GPU-" + p.Name, Owner: p, Values: map[gpu.FieldID]float64{gpu.GPUUtil: float64(70 * i), gpu.FBUsed: 100},
		})
	}
	aggregates := usage.NewAggregator(usage.AggregatorConfig{MaxGroups: 10, MaxAge: 5 * time.Second}, usage.AggregatorDeps{
		Store: r.store, Pods: &r.pods, Devices: r.deps.Devices, Fields: r.deps.Fields,
		WorkloadOf: func(pod *corev1.Pod) (string, string, bool) { return "Deployment", pod.Labels["app"], true },
	})
	w := r.add(autoscaler("web"))
	w.pass(r.now)
	w.mu.Lock() // as with a preset
	w.measures.signals[0].requests = 2.5
	w.minute.Add(r.now, w.plan.Load().metrics[0].requests, 2.5, math.NaN())
	w.mu.Unlock()
	r.sampleMinute(r.now)
	w.measures.sampled.sums = append(w.measures.sampled.sums, podsSum{"vllm:num_requests_waiting", 7})
	w.minute.Add(r.now, "pods/vllm:num_requests_waiting", 7, 3)
	aggregates.Pass(r.now)
	groups := &groupMinutes{groups: map[usage.Group]*history.Accumulator{}}
	groups.sample(aggregates.Last())
	shown := shownSeries(t, newMeters(r.Controller, nil), aggregates)
	recorded := continued(minutesOf(r, r.now.Truncate(time.Minute), groups))
	if !maps.Equal(shown, recorded) {
		for s, v := range shown {
			if recorded[s] != v {
				t.Errorf("/metrics has %s %s, the history %q", s, v, recorded[s])
			}
		}
		for s, v := range recorded {
			if _, ok := shown[s]; !ok {
				t.Errorf("only the history has %s %s", s, v)
			}
		}
	}
	for _, want := range []string{
		"gpupilot_autoscaler_signal_valuemap[name:web namespace:ns per:replica signal:Utilization unit:%]",
		"gpupilot_autoscaler_signal_requests_per_secondmap[name:web namespace:ns signal:Utilization]",
		"gpupilot_autoscaler_pods_summap[metric:vllm:num_requests_waiting name:web namespace:ns]",
		"gpupilot_autoscaler_gpusmap[name:web namespace:ns]",
		"gpupilot_workload_gpu_memory_used_bytesmap[in_use:active kind:Deployment name:web namespace:ns stat:sum]",
		"gpupilot_workload_gpusmap[in_use:active kind:Deployment name:web namespace:ns]",
		"gpupilot_namespace_gpu_utilization_ratiomap[in_use:allocated namespace:ns stat:avg_5m]",
	} {
		if shown[want] == "" || !strings.Contains(fmt.Sprint(slices.Collect(maps.Keys(recorded))), want) {
			t.Errorf("no series %s", want)
		}
	}
}
