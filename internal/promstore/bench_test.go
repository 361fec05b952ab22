// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// The queries that docs/promql.md has figures of.
const (
	byPod       = `avg by(namespace,pod)(DCGM_FI_DEV_GPU_UTIL)`
	byNamespace = `avg by(namespace)(DCGM_FI_DEV_GPU_UTIL)`
	walkthrough = `avg(max by(node,pod,namespace)(dcgm_gpu_utilization) * on(pod) group_left(label_app) max by(pod,label_app)(kube_pod_labels{label_app="cuda-test"}))`
)

// fleet is a store over nodes with 8 GPUs, each held by a pod, with samples of the last
// seconds.
func fleet(tb testing.TB, nodes, seconds int) (*Store, time.Time) {
	windows := series.New(series.Config{MaxBytes: 4 << 30})
	pods := podList{}
	now := start
	for n := range nodes {
		node := fmt.Sprintf("node-%05d", n)
		target := windows.Target("agent/gpupilot-system/"+node, series.TargetLabels{Node: node, Instance: fmt.Sprintf("10.%d.%d.%d:9400", n>>16, n>>8&255, n&255), Job: "agent"})
		var list []series.Exposed
		var b series.Batch
		for g := range 8 {
			pod, ns, app := fmt.Sprintf("worker-%05d-%d", n, g), fmt.Sprintf("team-%02d", (n+g)%50), "other"
			if g == 0 && n%(nodes/10) == 0 {
				app = "cuda-test"
			}
			pods.add(ns, pod, node, map[string]string{"app": app, "pod-template-hash": "6d4cf56db6"})
			uuid := fmt.Sprintf("GPU-%08x-d4bd-c2f7-dfaf-%012x", n, g)
			ref, ok := target.Ref(series.Key{Device: uuid, Field: gpu.GPUUtil})
			if !ok {
				tb.Fatal("no ref")
			}
			set := labels.FromStrings("__name__", "DCGM_FI_DEV_GPU_UTIL", "gpu", fmt.Sprint(g), "UUID", uuid, "pci_bus_id", fmt.Sprintf("00000000:%02X:00.0", g),
				"device", fmt.Sprintf("nvidia%d", g), "modelName", "NVIDIA H200", "Hostname", node, "DCGM_FI_DRIVER_VERSION", "580.105.08",
				"container", "main", "namespace", ns, "pod", pod, "node", node, "instance", "10.0.0.1:9400", "job", "agent")
			list = append(list, series.Exposed{Labels: set, Ref: ref, Field: gpu.GPUUtil, Scale: 1})
			b.Add(ref, float64((n*8+g)%101))
		}
		for s := range seconds {
			at := start.Add(time.Duration(s) * time.Second)
			now = at
			if s == 0 && !target.Expose(at, list) {
				tb.Fatal("not exposed")
			}
			if _, err := target.Append(at, &b); err != nil {
				tb.Fatal(err)
			}
		}
	}
	s := New(Config{}, Deps{Windows: windows, Pods: pods})
	s.now = func() time.Time { return now }
	return s, now
}

// BenchmarkPromQL evaluates instant queries over fleets of 8 GPUs per node.
func BenchmarkPromQL(b *testing.B) {
	for _, nodes := range []int{100, 1000, 10000} {
		s, now := fleet(b, nodes, 10)
		engine := promql.NewEngine(promql.EngineOpts{LookbackDelta: DefaultLookback, MaxSamples: 1e7, Timeout: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		for _, q := range []struct{ name, promql string }{{"byPod", byPod}, {"byNamespace", byNamespace}, {"join", walkthrough}} {
			b.Run(fmt.Sprintf("%s/%d", q.name, nodes*8), func(b *testing.B) {
				b.ReportAllocs()
				_, _ = s.Narrow(context.Background(), walkthrough, now, now) // makes the indexes
				for b.Loop() {
					text := q.promql
					if narrowed, err := s.Narrow(context.Background(), text, now, now); err == nil {
						text = narrowed
					}
					x, err := engine.NewInstantQuery(context.Background(), s, nil, text, now)
					if err != nil {
						b.Fatal(err)
					}
					if r := x.Exec(context.Background()); r.Err != nil {
						b.Fatal(r.Err)
					}
					x.Close()
				}
			})
		}
		runtime.KeepAlive(s)
	}
}
