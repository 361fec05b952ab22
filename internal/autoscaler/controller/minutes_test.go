// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// minutesOf is the minutes that a rig recorded.
func minutesOf(r *rig, minute time.Time, g ...*groupMinutes) map[history.Workload]map[history.Metric]history.Value {
	out := map[history.Workload]map[history.Metric]history.Value{}
	r.deps.RecordMinute = func(at time.Time, rows func(add func(history.Workload, []history.Value))) {
		rows(func(w history.Workload, values []history.Value) {
			out[w] = map[history.Metric]history.Value{}
			for _, v := range values {
				out[w][v.Metric] = v
			}
		})
	}
	r.recordMinute(minute, append(g, &groupMinutes{})[0])
	return out
}

func TestAMinuteHasTheDecisions(t *testing.T) {
	minute := time.Now().Truncate(time.Minute)
	a, b := pod("web", "web-1", minute.Add(-time.Hour), ready(minute.Add(-time.Hour))), pod("web", "web-2", minute.Add(-time.Hour), ready(minute.Add(-time.Hour)))
	r := newRig(t, deployment("web", 2), autoscaler("web"))
	r.leading = false // a standby records, too
	r.pods.Pods = append(r.pods.Pods, a, b)
	w := r.add(autoscaler("web"))
	for i, value := range []float64{30, 90} {
		now := minute.Add(time.Duration(1+i*20) * time.Second)
		r.utilization(now, value, a, b)
		w.pass(now)
		r.sampleMinute(now)
	}
	got := minutesOf(r, minute)[history.Workload{Namespace: "ns", Kind: "GPUAutoscaler", Name: "web"}]
	f := func(m history.Metric, mean, most, count float64) {
		t.Helper()
		v, ok := got[m]
		if fmt.Sprint(v.Mean, v.Max, v.Count) != fmt.Sprint(mean, most, count) || !ok {
			t.Errorf("%s is %+v, %v; want %v, %v, %v", m, v, ok, mean, most, count)
		}
	}
	nan := math.NaN()
	f("replicas/current", 2, 2, nan)
	f("replicas/serving", 2, 2, nan)
	f("replicas/starting", 0, 0, nan)
	f("gpus/allocated", 2, 2, nan)
	f("signal/Utilization|%|replica", 60, 90, 2)
	if v, ok := got["requests/Utilization"]; ok {
		t.Errorf("a signal without requests has %+v", v)
	}
	if again := minutesOf(r, minute); len(again) != 0 {
		t.Errorf("the minute was recorded twice: %v", again)
	}
	if next := minutesOf(r, minute.Add(time.Minute)); len(next) != 0 {
		t.Errorf("a minute without a decision is %v", next)
	}
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

func TestMinutesOfAWorkload(t *testing.T) {
	r := newRig(t, deployment("web", 2), autoscaler("web"))
	q := &view.MinuteQuery{Kind: view.AutoscalerKind, From: r.now.Add(-time.Hour), To: r.now, Step: time.Minute}
	if _, ok, err := r.Minutes("ns", "web", q); ok || err != nil {
		t.Errorf("an unknown workload: %v, %v", ok, err)
	}
	r.add(autoscaler("web"))
	if m, ok, err := r.Minutes("ns", "web", q); !ok || err != nil || len(m.Metrics) != 0 {
		t.Errorf("a workload without minutes: %+v, %v, %v", m, ok, err)
	}
	r.deps.History = history.New(history.Config{})
	w := history.Workload{Namespace: "ns", Kind: "GPUAutoscaler", Name: "gone"}
	if err := r.deps.History.Append(w, r.now.Add(-30*time.Minute), []history.Value{{Metric: "replicas/serving", Mean: 3, Max: 4}}); err != nil {
		t.Fatal(err)
	}
	if m, ok, err := r.Minutes("ns", "gone", q); !ok || err != nil || len(m.Metrics) != 1 {
		t.Errorf("a deleted workload: %+v, %v, %v", m, ok, err)
	}
}

func TestAMinuteHasTheAggregatesOfGPUs(t *testing.T) {
	r := newRig(t)
	minute := time.Now().Truncate(time.Minute)
	web, other := usage.Group{Namespace: "ns", Kind: "Deployment", Name: "web"}, usage.Group{Namespace: "ns", Kind: "Deployment", Name: "other"}
	lies := []usage.Group{{Namespace: "ns", Kind: "GPUAutoscaler", Name: "web"}, {Namespace: "ns", Kind: "Namespace", Name: "ns"}} // in owner references
	aggregates := func(second int, mean float64) *usage.Aggregates {
		items := []usage.Aggregate{{Field: gpu.GPUUtil, Allocated: usage.Stats{GPUs: 9, Mean: 1}}}
		for _, g := range append([]usage.Group{{Namespace: "ns"}, web, other}, lies...) {
			items = append(items, usage.Aggregate{Group: g, Field: gpu.GPUUtil, Allocated: usage.Stats{GPUs: 4, Mean: mean, Max: 2 * mean}, Active: usage.Stats{GPUs: 1, Mean: 99, Max: 99}})
		}
		return &usage.Aggregates{
			At: minute.Add(time.Duration(second) * time.Second), Items: items,
			GPUs: map[usage.Group]int{{}: 9, web: 4}, Shown: map[usage.Group]bool{{}: true, {Namespace: "ns"}: true, web: true, lies[0]: true, lies[1]: true}, // other is omitted
		}
	}
	g := &groupMinutes{groups: map[usage.Group]*history.Accumulator{}}
	g.sample(aggregates(10, 30))
	g.sample(aggregates(10, 30)) // no newer pass
	g.sample(aggregates(25, 60))
	got := minutesOf(r, minute, g)
	if len(got) != 2 {
		t.Errorf("recorded are %v, want the Deployment and the namespace", got)
	}
	values := got[history.Workload{Namespace: "ns", Kind: "Deployment", Name: "web"}]
	want := map[history.Metric]history.Value{
		"gpu/DCGM_FI_DEV_GPU_UTIL":    {Metric: "gpu/DCGM_FI_DEV_GPU_UTIL", Mean: 45, Max: 120, Count: 4},
		"active/DCGM_FI_DEV_GPU_UTIL": {Metric: "active/DCGM_FI_DEV_GPU_UTIL", Mean: 99, Max: 99, Count: 1},
		"gpus/active":                 {Metric: "gpus/active", Mean: 1, Max: 1, Count: math.NaN()},
		"gpus/allocated":              {Metric: "gpus/allocated", Mean: 4, Max: 4, Count: math.NaN()},
	}
	if fmt.Sprint(values) != fmt.Sprint(want) {
		t.Errorf("the Deployment has\n%v, want\n%v", values, want)
	}
	if v := got[history.Workload{Namespace: "ns", Kind: "Namespace", Name: "ns"}]; v["gpu/DCGM_FI_DEV_GPU_UTIL"].Mean != 45 {
		t.Errorf("the namespace has %v", v)
	}
	if minutesOf(r, minute.Add(time.Minute), g); len(g.groups) != 0 {
		t.Errorf("groups that have ended are kept: %v", g.groups)
	}
}
