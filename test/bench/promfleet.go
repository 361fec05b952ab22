// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// promQuery is a query with a name for tables. bar is that of its median CPU time over the largest fleet, in ms on the
// reference machine.
type promQuery struct {
	name, promQL string
	bar          float64
}

// promQueries returns the queries that documented figures are of: over all series, with many
// and with few groups, and the join of a walkthrough.
func promQueries() []promQuery {
	return []promQuery{
		{"avg by(namespace,pod)", `avg by(namespace,pod)(DCGM_FI_DEV_GPU_UTIL)`, 120},
		{"avg by(namespace)", `avg by(namespace)(DCGM_FI_DEV_GPU_UTIL)`, 50},
		{"join with kube_pod_labels", `avg(max by(node,pod,namespace)(dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod,label_app)(kube_pod_labels{label_app="chat"}))`, 5},
	}
}

// promSamples is the number of samples of a series, one per second.
const promSamples = 10

// promFleet is the windows of a fleet in memory. Each GPU has a pod of its own.
type promFleet struct {
	store *windows.Store
	now   time.Time // of the newest samples
	names []string  // of the pods
	pods  map[string]*corev1.Pod
}

// newPromFleet makes the windows of so many nodes, whose pods are in so many namespaces. Its error
// is a limit of the windows.
func newPromFleet(nodes, namespaces int) (*promFleet, error) {
	store := series.New(series.Config{MaxBytes: 4 << 30})
	f := &promFleet{pods: map[string]*corev1.Pod{}, now: time.Now()}
	for n := range nodes {
		if err := f.addNode(store, n, namespaces); err != nil {
			return nil, err
		}
	}
	f.store = windows.New(windows.Config{}, windows.Deps{Windows: store, Pods: f})
	return f, nil
}

func (f *promFleet) addNode(store *series.Store, n, namespaces int) error {
	node := fmt.Sprintf("node-%05d", n)
	instance := fmt.Sprintf("10.%d.%d.%d:9400", n>>16, n>>8&255, n&255)
	target := store.Target("agent/"+node, series.TargetLabels{Node: node, Instance: instance, Job: "agent"})
	var exposed []series.Exposed
	var b series.Batch
	for g := range gpus {
		pod := f.addPod(fmt.Sprintf("team-%02d", (n+g)%namespaces), fmt.Sprintf("worker-%05d-%d", n, g), node, n%100 == 0 && g == 0)
		uuid := fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", n, g)
		ref, ok := target.Ref(series.Key{Device: uuid, Field: gpu.GPUUtil})
		if !ok {
			return fmt.Errorf("node %s: no room for a series", node)
		}
		exposed = append(exposed, series.Exposed{Ref: ref, Field: gpu.GPUUtil, Scale: 1, Labels: labels.FromStrings(
			"__name__", "DCGM_FI_DEV_GPU_UTIL", "gpu", fmt.Sprint(g), "UUID", uuid, "pci_bus_id", fmt.Sprintf("00000000:%02X:00.0", g),
			"device", fmt.Sprintf("nvidia%d", g), "modelName", "NVIDIA H200", "Hostname", node, "DCGM_FI_DRIVER_VERSION", "580.105.08",
			"container", "main", "namespace", pod.Namespace, "pod", pod.Name, "node", node, "instance", instance, "job", "agent")})
		b.Add(ref, float64((n*gpus+g)%101))
	}
	for s := range promSamples {
		at := f.now.Add(time.Duration(s-promSamples+1) * time.Second)
		if s == 0 && !target.Expose(at, exposed) {
			return fmt.Errorf("node %s: no room for labels", node)
		}
		if _, err := target.Append(at, &b); err != nil {
			return err
		}
	}
	return nil
}

func (f *promFleet) addPod(namespace, name, node string, chat bool) *corev1.Pod {
	app := "other"
	if chat {
		app = "chat"
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}, CreationTimestamp: metav1.NewTime(f.now.Add(-time.Hour))},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	f.pods[namespace+"/"+name] = pod
	f.names = append(f.names, name)
	return pod
}

// Get implements windows.Pods.
func (f *promFleet) Get(namespace, name string) (*corev1.Pod, bool) {
	p, ok := f.pods[namespace+"/"+name]
	return p, ok
}

// Select implements windows.Pods.
func (f *promFleet) Select(string, k8slabels.Selector) []*corev1.Pod {
	out := make([]*corev1.Pod, 0, len(f.pods))
	for _, p := range f.pods {
		out = append(out, p)
	}
	return out
}

// engine makes the engine over the fleet as the controller does.
func (f *promFleet) engine() *engine.Engine {
	results := rules.NewStore(10*time.Minute, 64<<20)
	return engine.New(engine.Config{Lookback: windows.DefaultLookback, MaxSeries: 1e6, Narrow: f.store.Narrow, Want: f.store.WantFor}, engine.Join(f.store, results))
}
