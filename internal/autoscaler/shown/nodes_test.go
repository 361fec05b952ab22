// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/podtest"
)

// A GPU costs what its model or its pool costs. A MIG instance costs its share, by the resources of the pod that holds
// it or by the node's model; without a known share it has no price.
func TestPricesOfNodes(t *testing.T) {
	prices, err := price.Parse("NVIDIA H200=4,A100=3.5,pool:spot=1.4")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	devices, store := trust.NewPricedDevices(nil, prices), series.New(series.Config{})
	pods := podtest.List{}
	expose := func(node, model, pool, device string, resources ...string) {
		t.Helper()
		n := podtest.Node(node)
		n.Labels = map[string]string{"nvidia.com/gpu.product": model}
		if pool != "" {
			n.Labels["karpenter.sh/nodepool"] = pool
		}
		devices.NodeChanged(n, false)
		pod := podtest.Pod("app", "pod-"+node, now.Add(-time.Hour), podtest.Containers(podtest.Container(resources...)))
		pod.Spec.NodeName = node
		pods.Pods = append(pods.Pods, pod)
		podtest.Expose(t, store, "agent-"+node, series.TargetLabels{Node: node}, now, podtest.Utilization(device, 50, pod))
	}
	expose("a", "NVIDIA-H200", "", "GPU-1")
	expose("b", "NVIDIA-A100-SXM4-40GB", "", "GPU-2/gi1", "nvidia.com/mig-2g.10gb", "1")
	expose("c", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "", "MIG-3", "nvidia.com/gpu", "1")
	expose("d", "NVIDIA-A100-SXM4-40GB", "", "GPU-4/gi1")
	expose("e", "NVIDIA-T400", "", "GPU-5")
	expose("f", "NVIDIA-A100-SXM4-40GB", "spot", "GPU-6/gi2", "nvidia.com/mig-7g.40gb", "1")
	podtest.Expose(t, store, "agent-g", series.TargetLabels{Node: "a"}, now, podtest.Utilization("GPU-7", 0, nil)) // free
	podtest.Expose(t, store, "agent-h", series.TargetLabels{Node: "b"}, now, podtest.Utilization("GPU-2/gi2", 0, nil))

	// What an exporter says of an instance's profile tells its share, also of one that nobody holds or whose pod has it
	// from a resource claim.
	dra := podtest.Pod("app", "pod-dra", now.Add(-time.Hour), podtest.Containers(podtest.Container()))
	dra.Spec.NodeName = "b"
	pods.Pods = append(pods.Pods, dra)
	instance := func(name string, slices int, pod *corev1.Pod) podtest.Device {
		d := podtest.Utilization(name, 0, pod)
		d.Slices = slices
		return d
	}
	podtest.Expose(t, store, "agent-i", series.TargetLabels{Node: "b"}, now, instance("GPU-8/gi1", 3, dra), instance("GPU-8/gi2", 4, nil), instance("MIG-9", 1, dra))

	type cost struct {
		usd, share float64 // usd below 0: no price
	}
	want := map[string]cost{
		"GPU-1": {4, 0}, "GPU-2/gi1": {1, 2.0 / 7}, "MIG-3": {0.5, 1.0 / 7}, "GPU-4/gi1": {-1, 0}, "GPU-5": {-1, 0}, "GPU-6/gi2": {1.4, 1}, "GPU-7": {4, 0}, "GPU-2/gi2": {-1, 0}, "GPU-8/gi1": {1.5, 3.0 / 7}, "GPU-8/gi2": {2, 4.0 / 7}, "MIG-9": {0.5, 1.0 / 7},
	}
	got := map[string]bool{}
	for _, n := range Nodes(store, devices, &pods, now, 5*time.Second) {
		for _, g := range n.GPUs {
			got[g.UUID] = true
			w, ok := want[g.UUID]
			if !ok {
				continue
			}
			if g.Index == nil {
				t.Errorf("%s has no index", g.UUID)
			}
			usd := -1.0
			if g.USDPerHour != nil {
				usd = *g.USDPerHour
			}
			if d := usd - w.usd; d > 1e-9 || d < -1e-9 || g.Share != w.share {
				t.Errorf("%s on %s costs %g with a share of %g, want %g and %g", g.UUID, n.Model, usd, g.Share, w.usd, w.share)
			}
		}
	}
	for uuid := range want {
		if !got[uuid] {
			t.Errorf("%s is not shown", uuid)
		}
	}
}

// A node whose exporter has never answered is a node with a problem, and has no GPUs that are known.
func TestSilentNodes(t *testing.T) {
	devices := trust.NewDevices(nil)
	n := podtest.Node("b")
	n.Labels = map[string]string{"karpenter.sh/nodepool": "spot"}
	devices.NodeChanged(n, false)
	now := time.Unix(1000, 0)
	targets := []view.Target{
		{Kind: "agent", Node: "b", Error: "i/o timeout"},
		{Kind: "dcgm-exporter", Node: "b", Error: "i/o timeout"},
		{Kind: "agent", Node: "a", Error: "i/o timeout"},
		{Kind: "agent", Node: "c"},
		{Kind: "agent", Node: "starts", Starting: now},
		{Kind: "agent", Node: "answers", Up: true},
		{Kind: "agent", Node: "answered", LastSuccess: now},
		{Kind: view.KindPod, Node: "pod"},
		{Kind: "agent"},
	}
	v := view.View{Targets: targets, Nodes: WithSilent([]view.Node{{Name: "a"}, {Name: "d"}}, targets, devices)}
	var got []string
	for _, n := range v.NodeSummaries() {
		got = append(got, n.Name+" "+n.Pool+" "+strings.Join(n.Problems, "; "))
	}
	want := []string{"a  agent: i/o timeout", "b spot agent: i/o timeout; dcgm-exporter: i/o timeout", "c  agent: no answer yet", "d  "}
	if !slices.Equal(got, want) || v.Nodes[1].GPUs == nil {
		t.Errorf("%q, want %q", got, want)
	}
}

// A GPU is lost where its node's condition says so, whatever its last values are.
func TestLostGPUs(t *testing.T) {
	now := time.Unix(1000, 0)
	devices, store := trust.NewDevices(nil), series.New(series.Config{})
	n := podtest.Node("a")
	health := gpu.NodeHealth{GPUs: []gpu.Health{{UUID: "GPU-1", RowRemapFailure: true}, {UUID: "GPU-2", Down: true}}}
	var messages []string
	for _, f := range health.Faults(now) {
		messages = append(messages, f.Message)
	}
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: gpu.NodeHealthCondition, Status: corev1.ConditionFalse, Reason: gpu.FaultLost, Message: strings.Join(messages, "; "), LastTransitionTime: metav1.Time{Time: now.Add(-time.Hour)}})
	devices.NodeChanged(n, false)
	podtest.Expose(t, store, "agent-a", series.TargetLabels{Node: "a"}, now, podtest.Utilization("GPU-1", 50, nil), podtest.Utilization("GPU-2", 50, nil))
	got := Nodes(store, devices, &podtest.List{}, now, time.Second)[0]
	if len(got.GPUs) != 2 || got.GPUs[0].Lost || !got.GPUs[1].Lost || !got.FaultSince.Equal(now.Add(-time.Hour)) {
		t.Errorf("%+v", got)
	}
}

// GPUs of a node are in the order of their indexes, not of their UUIDs.
func TestGPUsAreInTheOrderOfTheirIndexes(t *testing.T) {
	now, store := time.Unix(1000, 0), series.New(series.Config{})
	podtest.Expose(t, store, "agent-a", series.TargetLabels{Node: "a"}, now, podtest.Utilization("GPU-9", 0, nil), podtest.Utilization("GPU-1", 0, nil), podtest.Utilization("GPU-5", 0, nil))
	nodes := Nodes(store, trust.NewDevices(nil), &podtest.List{}, now, time.Minute)
	got := ""
	for _, g := range nodes[0].GPUs {
		got += fmt.Sprint(*g.Index, " ", g.UUID, " ")
	}
	if want := "0 GPU-9 1 GPU-1 2 GPU-5 "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
