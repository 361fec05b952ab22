// SPDX-License-Identifier: Apache-2.0

package controller

import (
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
	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
)

// What a dashboard shows of a workload: limits, the signal against its target, the
// rule, and the change of replicas. Without fresh data no value is shown.
func TestDecisionsAreMetered(t *testing.T) {
	r, w := loaded(t, 90)
	reg := prometheus.NewRegistry()
	r.meters.Register(reg)
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
	w.metered.Signals[0].Requests = 2
	w.metered.Signals[1].Requests = 3
	r.sample(r.now)
	w.metered.Sampled.Sums = []meters.Sum{{Metric: "a", Value: 1}}
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
		if len(x.Name) > meters.MaxSignalName {
			t.Errorf("the name %q has %d bytes", x.Name, len(x.Name))
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
