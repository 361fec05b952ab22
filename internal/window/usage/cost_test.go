// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// pricedRig is a rig with prices and three nodes: H200s, MIG instances of an A100, and a model
// without a price.
func pricedRig(t *testing.T, minutes Minutes) *rig {
	t.Helper()
	r := newRig(t)
	prices, err := price.Parse("NVIDIA H200=4,A100=3.5")
	if err != nil {
		t.Fatal(err)
	}
	devices := trust.NewPricedDevices(nil, prices)
	for node, model := range map[string]string{"node-1": "NVIDIA-H200", "node-2": "NVIDIA-A100-SXM4-40GB", "node-3": "NVIDIA-T400"} {
		n := podtest.Node(node)
		n.Labels = map[string]string{"nvidia.com/gpu.product": model}
		devices.NodeChanged(n, false)
	}
	r.Aggregator = NewAggregator(AggregatorConfig{MaxGroups: 10, MaxAge: 5 * time.Second}, AggregatorDeps{
		Store: r.store, Pods: &r.pods, Devices: devices, Fields: NewFields(), Minutes: minutes,
		WorkloadOf: func(pod *corev1.Pod) (string, string, bool) { return "Deployment", pod.Labels["app"], true },
	})
	return r
}

func onNode(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }

// Each GPU costs what its model costs, a MIG instance its share, and a GPU without a price is
// missing, which the number beside the sum says.
func TestCosts(t *testing.T) {
	minutes := readings{}
	r := pricedRig(t, minutes)
	at := r.now.Add(-time.Second)
	old := ready(r.now.Add(-time.Hour))
	busy, idle := pod("chat", "chat-1", r.now.Add(-time.Hour), old), pod("chat", "chat-2", r.now.Add(-time.Hour), old)
	small := pod("small", "small-1", r.now.Add(-time.Hour), old, onNode("node-2"), containers(requests("nvidia.com/mig-2g.10gb", "1")))
	other := pod("other", "other-1", r.now.Add(-time.Hour), old, onNode("node-3"))
	dra := pod("dra", "dra-1", r.now.Add(-time.Hour), old, onNode("node-2"))
	r.pods.Pods = []*corev1.Pod{busy, idle, small, other, dra}
	podtest.Expose(t, r.store, "agent-1", series.TargetLabels{Node: "node-1"}, at, podtest.Utilization("GPU-1", 90, busy), podtest.Utilization("GPU-2", 0, idle))
	podtest.Expose(t, r.store, "agent-2", series.TargetLabels{Node: "node-2"}, at, podtest.Utilization("GPU-3/gi1", 50, small), podtest.Utilization("GPU-3/gi2", 50, dra))
	claimed := pod("claimed", "claimed-1", r.now.Add(-time.Hour), old, onNode("node-2"))
	r.pods.Pods = append(r.pods.Pods, claimed)
	podtest.Expose(t, r.store, "agent-4", series.TargetLabels{Node: "node-2"}, at, podtest.Device{Name: "GPU-5/gi1", Owner: claimed, Values: map[gpu.FieldID]float64{gpu.GPUUtil: 50}, Slices: 4})
	podtest.Expose(t, r.store, "agent-3", series.TargetLabels{Node: "node-3"}, at, podtest.Utilization("GPU-4", 10, other))
	r.Pass(r.now)

	f := func(g Group, allocated, active, unpriced float64) {
		t.Helper()
		items := r.Last().Items
		i := slices.IndexFunc(items, func(x Aggregate) bool { return x.Group == g && x.Field == gpu.GPUUtil })
		if i < 0 {
			t.Fatalf("no aggregate of %+v", g)
		}
		if a, b := &items[i].Allocated, &items[i].Active; math.Abs(a.USDPerHour-allocated) > 1e-9 || math.Abs(b.USDPerHour-active) > 1e-9 || a.Unpriced != unpriced {
			t.Errorf("%+v costs %g an hour, of which %g are active, without %g GPUs; want %g, %g, %g", g, a.USDPerHour, b.USDPerHour, a.Unpriced, allocated, active, unpriced)
		}
	}
	f(Group{"ns", "Deployment", "chat"}, 8, 4, 0)
	f(Group{"ns", "Deployment", "small"}, 1, 1, 0)   // two sevenths of 3.5
	f(Group{"ns", "Deployment", "claimed"}, 2, 2, 0) // four sevenths, as its exporter says
	f(Group{"ns", "Deployment", "dra"}, 0, 0, 1)     // an instance of which no resource tells the share
	f(Group{"ns", "Deployment", "other"}, 0, 0, 1)
	f(Group{Namespace: "ns"}, 11, 7, 2)
	f(Group{}, 11, 7, 2)

	err := testutil.CollectAndCompare(r.Aggregator, strings.NewReader(`
# HELP gpupilot_workload_gpu_cost_usd_per_hour USD an hour of GPUs in use of a workload that have a price, by --gpu-price. A MIG instance and a shared GPU cost their share. Absent without prices.
# TYPE gpupilot_workload_gpu_cost_usd_per_hour gauge
gpupilot_workload_gpu_cost_usd_per_hour{in_use="active",kind="Deployment",name="chat",namespace="ns"} 4
gpupilot_workload_gpu_cost_usd_per_hour{in_use="active",kind="Deployment",name="claimed",namespace="ns"} 2
gpupilot_workload_gpu_cost_usd_per_hour{in_use="active",kind="Deployment",name="small",namespace="ns"} 1
gpupilot_workload_gpu_cost_usd_per_hour{in_use="allocated",kind="Deployment",name="chat",namespace="ns"} 8
gpupilot_workload_gpu_cost_usd_per_hour{in_use="allocated",kind="Deployment",name="claimed",namespace="ns"} 2
gpupilot_workload_gpu_cost_usd_per_hour{in_use="allocated",kind="Deployment",name="small",namespace="ns"} 1
`), "gpupilot_workload_gpu_cost_usd_per_hour")
	if err != nil {
		t.Error(err)
	}
	recorded := map[history.Metric]float64{}
	for _, v := range minutes[history.Workload{Namespace: "ns", Kind: history.KindNamespace, Name: "ns"}] {
		if name := v.Metric.Name(); strings.Contains(name, "cost") || strings.Contains(name, "unpriced") {
			recorded[v.Metric] = v.Mean
		}
	}
	want := `map[gpupilot_namespace_gpu_cost_usd_per_hour{in_use="active"}:7 gpupilot_namespace_gpu_cost_usd_per_hour{in_use="allocated"}:11 ` +
		`gpupilot_namespace_unpriced_gpus{in_use="active"}:2 gpupilot_namespace_unpriced_gpus{in_use="allocated"}:2]`
	if got := fmt.Sprint(recorded); got != want {
		t.Errorf("recorded %s, want %s", got, want)
	}
}

// Pods that share a GPU pay for it once, together.
func TestSharersPayTheirShare(t *testing.T) {
	r := pricedRig(t, nil)
	old := ready(r.now.Add(-time.Hour))
	a, b, c := pod("a", "a-1", r.now.Add(-time.Hour), old), pod("b", "b-1", r.now.Add(-time.Hour), old), pod("b", "b-2", r.now.Add(-time.Hour), old)
	r.pods.Pods = []*corev1.Pod{a, b, c}
	at, owners := r.now.Add(-time.Second), []gpu.Owner{}
	for _, p := range r.pods.Pods {
		owners = append(owners, gpu.Owner{Namespace: p.Namespace, Pod: p.Name})
	}
	podtest.Expose(t, r.store, "agent-1", series.TargetLabels{Node: "node-1"}, at, podtest.Utilization("GPU-1", 30, a))
	r.store.Target("agent-1", series.TargetLabels{Node: "node-1"}).SetOwners(at, []series.DeviceOwners{{Device: "GPU-1", Owners: owners}})
	r.Pass(r.now)
	got := map[string]float64{}
	for _, x := range r.Last().Items {
		got[x.Name] = x.Allocated.USDPerHour
	}
	if math.Abs(got["a"]-4./3) > 1e-9 || math.Abs(got["b"]-8./3) > 1e-9 || math.Abs(got[""]-4) > 1e-9 {
		t.Errorf("the sharers pay %v of 4", got)
	}
}

// Without prices there is nothing about costs: missing is not zero.
func TestNoPrices(t *testing.T) {
	r := newRig(t)
	p := pod("a", "a-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
	r.pods.Pods = []*corev1.Pod{p}
	r.utilization(r.now.Add(-time.Second), 50, p)
	r.Pass(r.now)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r.Aggregator)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	if !names["gpupilot_workload_gpus"] || names["gpupilot_workload_gpu_cost_usd_per_hour"] || names["gpupilot_workload_unpriced_gpus"] {
		t.Errorf("on /metrics are %v", slices.Sorted(maps.Keys(names)))
	}
}
