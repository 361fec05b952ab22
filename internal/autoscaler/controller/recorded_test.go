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

	"github.com/gpupilot/gpupilot/internal/autoscaler/aspect"
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// recordedMinutes takes all readings as those of one minute. It implements Minutes.
type recordedMinutes map[history.Workload]map[history.Metric][]history.Value

func (m recordedMinutes) Add(_ time.Time, w history.Workload, readings []history.Value) {
	if m[w] == nil {
		m[w] = map[history.Metric][]history.Value{}
	}
	for _, v := range readings {
		if !math.IsNaN(v.Mean) {
			m[w][v.Metric] = append(m[w][v.Metric], v)
		}
	}
}

func TestAMinuteHasTheDecisions(t *testing.T) {
	minute := time.Now().Truncate(time.Minute)
	a, b := pod("web", "web-1", minute.Add(-time.Hour), ready(minute.Add(-time.Hour))), pod("web", "web-2", minute.Add(-time.Hour), ready(minute.Add(-time.Hour)))
	r := newRig(t, deployment("web", 2), autoscaler("web"))
	r.leading = false // a standby records, too
	r.pods.Pods = append(r.pods.Pods, a, b)
	minutes := recordedMinutes{}
	r.deps.Minutes = minutes
	w := r.add(autoscaler("web"))
	for i, value := range []float64{30, 90} {
		now := minute.Add(time.Duration(1+i*20) * time.Second)
		r.utilization(now, value, a, b)
		w.pass(now)
		r.sample(now)
	}
	got := minutes[history.Workload{Namespace: "ns", Kind: "GPUAutoscaler", Name: "web"}]
	f := func(m history.Metric, want ...float64) {
		t.Helper()
		var means []float64
		for _, v := range got[m] {
			if v.Max != v.Mean || !math.IsNaN(v.Count) {
				t.Errorf("%s is %+v", m, v)
			}
			means = append(means, v.Mean)
		}
		if !slices.Equal(means, want) {
			t.Errorf("%s is %v, want %v", m, means, want)
		}
	}
	f(`gpupilot_autoscaler_replicas{state="current"}`, 2, 2)
	f(`gpupilot_autoscaler_replicas{state="serving"}`, 2, 2)
	f(`gpupilot_autoscaler_replicas{state="starting"}`, 0, 0)
	f("gpupilot_autoscaler_gpus", 2, 2)
	f(`gpupilot_autoscaler_signal_value{per="replica",signal="Utilization",unit="%"}`, 30, 90)
	f(`gpupilot_autoscaler_signal_requests_per_second{signal="Utilization"}`)
}

// A sum without one of the pods looks like a lower load.
func TestRequestRatesNeedAllServingPods(t *testing.T) {
	reading := func(v float64) []scale.Reading { return []scale.Reading{{Value: v, OK: !math.IsNaN(v)}} }
	f := func(want string, pods ...scale.Replica) {
		t.Helper()
		if got := fmt.Sprint(requestRates(&scale.Observation{Pods: pods})); got != want {
			t.Errorf("rates are %s, want %s", got, want)
		}
	}
	starting := scale.Replica{Phase: scale.Starting}
	two, three, none := scale.Replica{Phase: scale.Serving, Arrivals: reading(2)}, scale.Replica{Phase: scale.Serving, Arrivals: reading(3)}, scale.Replica{Phase: scale.Serving, Arrivals: reading(math.NaN())}
	f("[]")
	f("[]", starting)
	f("[5]", two, three, starting)
	f("[NaN]", two, none)
	f("[NaN]", none, two)
	f("[NaN]", two, scale.Replica{Phase: scale.Serving})
}

// recordedFamily returns the family of a name; nil: the history has none.
func recordedFamily(name string) *history.Family {
	all := slices.Concat(meters.Recorded(), usage.Recorded())
	if i := slices.IndexFunc(all, func(f history.Family) bool { return f.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// shownSeries lists the series of /metrics with their values, which the history continues.
func shownSeries(t *testing.T, collectors ...prometheus.Collector) map[string]string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(collectors...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range families {
		if recordedFamily(f.GetName()) == nil {
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
func continued(t *testing.T, minutes recordedMinutes) map[string]string {
	t.Helper()
	out := map[string]string{}
	for w, values := range minutes {
		for m, v := range values {
			f := recordedFamily(m.Name())
			if f == nil || f.Of != w.Subject() {
				t.Errorf("%s has %s", w, m)
				continue
			}
			pairs := maps.Collect(m.Labels())
			for i, of := 0, w.Labels(); i < len(of); i += 2 {
				pairs[of[i]] = of[i+1]
			}
			for _, stat := range f.Statistics() {
				if stat != history.StatNone {
					pairs["stat"] = string(stat)
				}
				out[fmt.Sprint(m.Name(), pairs)] = fmt.Sprintf("%.4g", stat.Of(&v[len(v)-1]))
			}
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
	minutes := recordedMinutes{}
	r.deps.Minutes = minutes
	aggregates := usage.NewAggregator(usage.AggregatorConfig{MaxGroups: 10, MaxAge: 5 * time.Second}, usage.AggregatorDeps{
		Store: r.store, Pods: &r.pods, Devices: r.deps.Devices, Fields: r.deps.Fields, Minutes: minutes,
		WorkloadOf: func(pod *corev1.Pod) (string, string, bool) { return "Deployment", pod.Labels["app"], true },
	})
	w := r.add(autoscaler("web"))
	w.pass(r.now)
	w.mu.Lock() // as with a preset
	w.metered.Signals[0].Requests, w.metered.Signals[0].Prompt, w.metered.Signals[0].Output = 2.5, 4000, 600
	n := w.metered.Counts
	w.recordReading(&pass{plan: w.plan.Load(), Pass: aspect.Pass{At: r.now, Decision: &scale.Decision{Current: n.Current, Replicas: n.Desired, Serving: n.Serving, Starting: n.Starting, Unschedulable: n.Unschedulable}}})
	w.mu.Unlock()
	r.sample(r.now)
	w.metered.Sampled.Sums = append(w.metered.Sampled.Sums, meters.Sum{Metric: "vllm:num_requests_waiting", Value: 7})
	w.recordMinute(r.now, w.metered.SampledReadings())
	aggregates.Pass(r.now)
	shown := shownSeries(t, r.meters, aggregates)
	recorded := continued(t, minutes)
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
		"gpupilot_autoscaler_signal_tokens_per_secondmap[name:web namespace:ns signal:Utilization type:output]",
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
