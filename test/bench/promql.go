// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8slabels "k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promengine"
	"github.com/gpupilot/gpupilot/internal/promstore"
	"github.com/gpupilot/gpupilot/internal/series"
)

// promQuery is a query with the bar for its median time over the largest fleet, in ms.
type promQuery struct {
	name, promql string
	bar          float64
}

func promQueries() []promQuery {
	return []promQuery{
		{"avg by(namespace,pod)", `avg by(namespace,pod)(DCGM_FI_DEV_GPU_UTIL)`, 120},
		{"avg by(namespace)", `avg by(namespace)(DCGM_FI_DEV_GPU_UTIL)`, 50},
		{"join with kube_pod_labels", `avg(max by(node,pod,namespace)(dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod,label_app)(kube_pod_labels{label_app="chat"}))`, 5},
	}
}

// promRuns is how many times each query runs.
const promRuns = 15

// benchPromQL measures instant queries over the windows of fleets of 8 GPUs per node, as
// the controller evaluates them. The bars are those of the largest fleet.
func benchPromQL(ctx context.Context, _ config, out io.Writer) ([]Row, error) {
	var rows []Row
	fleets := []int{100, 1000, 10000}
	for i, nodes := range fleets {
		fmt.Fprintf(out, "promql: %d series\n", nodes*8)
		f, err := newPromFleet(nodes, 50)
		if err != nil {
			return nil, err
		}
		engine := f.engine()
		for _, q := range promQueries() {
			p50, err := f.time(ctx, engine, q.promql)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", q.promql, err)
			}
			name := fmt.Sprintf("PromQL over %d series, %s, p50", nodes*8, q.name)
			if i == len(fleets)-1 {
				rows = append(rows, atMost(name, p50, "ms", q.bar))
			} else {
				rows = append(rows, figure(name, p50, "ms"))
			}
		}
	}
	return rows, nil
}

// promFleet is the windows of a fleet in memory, with one pod for each GPU.
type promFleet struct {
	store *promstore.Store
	now   time.Time
	pods  map[string]*corev1.Pod
	names []string // of the pods
}

// newPromFleet makes the windows of so many nodes, whose pods are in so many namespaces.
// The samples are of the last ten seconds.
func newPromFleet(nodes, namespaces int) (*promFleet, error) {
	windows := series.New(series.Config{MaxBytes: 4 << 30})
	f := &promFleet{pods: map[string]*corev1.Pod{}, now: time.Now()}
	for n := range nodes {
		if err := f.addNode(windows, n, namespaces); err != nil {
			return nil, err
		}
	}
	f.store = promstore.New(promstore.Config{}, promstore.Deps{Windows: windows, Pods: f})
	return f, nil
}

// promSamples is the number of samples of a series, one per second.
const promSamples = 10

func (f *promFleet) addNode(windows *series.Store, n, namespaces int) error {
	node := fmt.Sprintf("node-%05d", n)
	instance := fmt.Sprintf("10.%d.%d.%d:9400", n>>16, n>>8&255, n&255)
	target := windows.Target("agent/"+node, series.TargetLabels{Node: node, Instance: instance, Job: "agent"})
	var exposed []series.Exposed
	var b series.Batch
	for g := range 8 {
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
		b.Add(ref, float64((n*8+g)%101))
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

// Get implements promstore.Pods.
func (f *promFleet) Get(namespace, name string) (*corev1.Pod, bool) {
	p, ok := f.pods[namespace+"/"+name]
	return p, ok
}

// Select implements promstore.Pods.
func (f *promFleet) Select(string, k8slabels.Selector) []*corev1.Pod {
	out := make([]*corev1.Pod, 0, len(f.pods))
	for _, p := range f.pods {
		out = append(out, p)
	}
	return out
}

// engine makes the engine as the controller does.
func (f *promFleet) engine() *promengine.Engine {
	return promengine.New(promengine.Config{Lookback: promstore.DefaultLookback, MaxSeries: 1e6, Narrow: f.store.Narrow}, f.store)
}

// time returns the median time of a query, in ms. The first runs, which make indexes, do
// not count.
func (f *promFleet) time(ctx context.Context, e *promengine.Engine, query string) (float64, error) {
	var times []float64
	for run := range promRuns + 2 {
		began := time.Now()
		if _, _, err := e.Instant(ctx, promengine.Query{PromQL: query, Payer: "bench"}, f.now); err != nil {
			return 0, err
		}
		if run >= 2 {
			times = append(times, ms(time.Since(began)))
		}
	}
	runtime.KeepAlive(f)
	slices.Sort(times)
	return quantile(times, 0.5), nil
}
