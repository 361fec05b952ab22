// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// What a dashboard shows of a workload: limits, the signal against its target, the
// rule, and the change of replicas. Without fresh data no value is shown.
func TestDecisionsAreMetered(t *testing.T) {
	r, w := loaded(t, 90)
	reg := prometheus.NewRegistry()
	r.meters.register(reg)
	is := func(name string, want ...string) {
		t.Helper()
		if got := seriesOf(t, reg, "gpupilot_autoscaler_"+name); !slices.Equal(got, want) {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	is("scales_total", "direction=down 0", "direction=up 0")
	is("gpus")
	w.pass(r.now)
	r.sample(r.now)
	is("gpus", "1")
	is("replicas_limit", "limit=max 10", "limit=min 1")
	is("signal_value", "per=replica signal=Utilization unit=% 90")
	is("signal_target", "per=replica signal=Utilization unit=% 60")
	is("signal_age_seconds", "signal=Utilization 1")
	is("signal_demand_replicas", "signal=Utilization 1.5")
	is("decisions_total", "rule=Demand 1")
	is("last_decision_info", "rule=Demand 1")
	is("scales_total", "direction=down 0", "direction=up 1")
	if n := testutil.CollectAndCount(r.meters, "gpupilot_autoscaler_last_scale_timestamp_seconds"); n != 1 {
		t.Errorf("%d times of a last scale, want 1", n)
	}

	// The value of some of the replicas could look like less load.
	all := r.pods.Pods
	r.pods.Pods = append(slices.Clone(all), pod("web", "web-silent", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour))))
	w.pass(r.now)
	is("signal_value")
	is("signal_demand_replicas")
	is("signal_target", "per=replica signal=Utilization unit=% 60")
	r.pods.Pods = all

	w.pass(r.now.Add(time.Minute))
	is("signal_value")
	is("signal_age_seconds")
	is("signal_target", "per=replica signal=Utilization unit=% 60")
	is("last_decision_info", "rule=MissingData 1")
}

// The names of signals and metrics are cut. If two are equal then, /metrics still has each
// series once: one that it has twice makes the whole page fail.
func TestLongNamesAreDistinctOnMetrics(t *testing.T) {
	a, long := autoscaler("web"), strings.Repeat("é", 400)
	a.Spec.Signals = nil
	for _, end := range []string{"", "", "1", "2"} {
		a.Spec.Signals = append(a.Spec.Signals, v1alpha1.Signal{Pods: &v1alpha1.PodsSignal{Metric: long + end}, Target: &v1alpha1.Target{Value: resource.MustParse("1")}})
	}
	r := newRig(t, deployment("web", 1), a)
	p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8000}}
	r.pods.Pods = append(r.pods.Pods, p)
	w := r.add(a)
	w.pass(r.now)
	w.measures.signals[0].requests = 2
	w.measures.signals[1].requests = 3
	r.sample(r.now)
	w.measures.sampled.sums = []podsSum{{"a", 1}}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(r.meters)
	if got := seriesOf(t, reg, "gpupilot_autoscaler_signal_target"); len(got) != 4 {
		t.Errorf("series %q", got)
	}
	if got := seriesOf(t, reg, "gpupilot_autoscaler_signal_requests_per_second"); len(got) != 2 {
		t.Errorf("series %q", got)
	}
	if got, want := seriesOf(t, reg, "gpupilot_autoscaler_pods_sum"), []string{"metric=a 1"}; !slices.Equal(got, want) {
		t.Errorf("series %q, want %q", got, want)
	}
	for _, x := range w.plan.Load().metrics {
		if len(x.name) > maxSignalName {
			t.Errorf("the name %q has %d bytes", x.name, len(x.name))
		}
		if l := maps.Collect(x.perWorkload.Labels()); l["signal"] != x.name || l["per"] != "workload" {
			t.Errorf("the history has %q, want %q", x.perWorkload, x.name)
		}
	}
}

// Nodes with GPUs are counted, with the labels that a dashboard groups them by.
func TestNodesAreMetered(t *testing.T) {
	r := newRig(t)
	reg := prometheus.NewRegistry()
	reg.MustRegister(r.deps.Devices)
	node := func(name string, gpus int64, labels map[string]string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
		if gpus > 0 {
			n.Status.Capacity = corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}
		}
		return n
	}
	r.deps.Devices.NodeChanged(node("a", 8, map[string]string{"cloud.google.com/gke-nodepool": "h200", "nvidia.com/gpu.product": "NVIDIA-H200"}), false)
	r.deps.Devices.NodeChanged(node("cpu", 0, nil), false)
	r.deps.Devices.NodeChanged(node("gone", 4, nil), false)
	r.deps.Devices.NodeChanged(node("gone", 4, nil), true)
	if got, want := seriesOf(t, reg, "gpupilot_node_gpus"), []string{"model=NVIDIA-H200 node=a pool=h200 8"}; !slices.Equal(got, want) {
		t.Errorf("gpupilot_node_gpus is %q, want %q", got, want)
	}
}

// metricsOf returns the series of a metric.
func metricsOf(t *testing.T, reg prometheus.Gatherer, name string) []*dto.Metric {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()
		}
	}
	return nil
}

// seriesOf lists a metric's series without the object's labels, sorted.
func seriesOf(t *testing.T, reg prometheus.Gatherer, name string) (out []string) {
	t.Helper()
	for _, m := range metricsOf(t, reg, name) {
		var words []string
		for _, l := range m.GetLabel() {
			if n := l.GetName(); n != "namespace" && n != "name" {
				words = append(words, n+"="+l.GetValue())
			}
		}
		value := m.GetGauge().GetValue() + m.GetCounter().GetValue() // one of the two is set
		out = append(out, strings.Join(append(words, strconv.FormatFloat(value, 'g', -1, 64)), " "))
	}
	slices.Sort(out)
	return out
}

// Values and targets say whether they are a replica's or the workload's.
func TestMeasuresTellTheirScope(t *testing.T) {
	f := func(typ scale.TargetType, total bool, value, target string) {
		t.Helper()
		var m measures
		p := &plan{Compiled: policy.Compiled{Policy: scale.Policy{Signals: []scale.Signal{{Name: "q", Type: typ}}}}}
		p.metrics = newSignalMetrics(&p.Policy)
		m.recordDecision(&scale.Decision{
			Rule: scale.RuleDemand, Current: 4, Replicas: 2,
			Steps:  []scale.Step{{Rule: scale.RuleDemand, Facts: scale.Facts{Signal: "q", Demand: 2, Total: total}}},
			Inputs: []scale.Input{{Signal: "q", Value: 1, Target: 2, Fresh: 1}},
		}, p, nil, &scale.State{})
		s := m.signals[0]
		if got := scopeOf(s.valueIsTotal); got != value {
			t.Errorf("type %v, total %v: the value is per %s, want %s", typ, total, got, value)
		}
		if got := scopeOf(s.targetIsTotal); got != target {
			t.Errorf("type %v, total %v: the target is per %s, want %s", typ, total, got, target)
		}
	}
	f(scale.AverageValue, false, "replica", "replica")
	f(scale.AverageValue, true, "workload", "replica")
	f(scale.Value, true, "workload", "workload")
}

func TestScalesAreCountedByDirection(t *testing.T) {
	var m measures
	for _, to := range []int32{2, 5, 1} {
		m.recordScale(&scale.Decision{Current: 3, Replicas: to, Rule: scale.RuleDemand}, time.Now())
	}
	if m.scales[scaledUp] != 1 || m.scales[scaledDown] != 2 || m.last.direction != scaledDown {
		t.Errorf("%v, last %s; want 1 up, 2 down, last down", m.scales, m.last.direction)
	}
}
