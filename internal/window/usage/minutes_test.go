// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// readings takes readings by their workload. It implements Minutes.
type readings map[history.Workload][]history.Value

func (r readings) Add(_ time.Time, w history.Workload, list []history.Value) {
	r[w] = append(r[w], list...)
}

func TestAMinuteHasTheAggregatesOfGPUs(t *testing.T) {
	web, other := Group{"ns", "Deployment", "web"}, Group{"ns", "Deployment", "other"}
	lies := []Group{{"ns", "GPUAutoscaler", "web"}, {"ns", "Namespace", "ns"}} // in owner references
	items := []Aggregate{{Field: gpu.GPUUtil, Allocated: Stats{GPUs: 9, Mean: 1}}}
	for _, g := range append([]Group{{Namespace: "ns"}, web, other}, lies...) {
		items = append(items,
			Aggregate{Group: g, Field: gpu.GPUUtil, Allocated: Stats{GPUs: 4, Mean: 30, Max: 60}, Active: Stats{GPUs: 1, Mean: 99, Max: 99}},
			Aggregate{Group: g, Field: gpu.FBUsed, Allocated: Stats{GPUs: 4, Mean: 2, Max: 3}},
			Aggregate{Group: g, Field: gpu.SMClock, Allocated: Stats{GPUs: 4, Mean: 1500, Max: 1600}},
		)
	}
	minutes := readings{}
	newMinutes(minutes, false).add(&Aggregates{
		At: time.Now(), Items: items,
		GPUs: map[Group]int{{}: 9, web: 4}, Shown: map[Group]bool{{}: true, {Namespace: "ns"}: true, web: true, lies[0]: true, lies[1]: true}, // other is omitted
	})
	value := func(m history.Metric, mean, most, count float64) string {
		return fmt.Sprint(history.Value{Metric: m, Mean: mean, Max: most, Count: count})
	}
	f := func(w history.Workload, prefix string) {
		t.Helper()
		var got []string
		for _, v := range minutes[w] {
			got = append(got, fmt.Sprint(v))
		}
		slices.Sort(got)
		name := func(name, inUse string) history.Metric { return history.NewMetric(prefix+name, "in_use", inUse) }
		want := []string{
			value(`DCGM_FI_DEV_SM_CLOCK{in_use="allocated"}`, 1500, 1600, 4),
			value(name("_gpu_memory_used_bytes", "allocated"), 2<<20, 3<<20, 4),
			value(name("_gpu_utilization_ratio", "active"), 0.99, 0.99, 1), value(name("_gpu_utilization_ratio", "allocated"), 0.3, 0.6, 4),
			value(name("_gpus", "active"), 1, 1, math.NaN()), value(name("_gpus", "allocated"), 4, 4, math.NaN()),
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has\n%q, want\n%q", w, got, want)
		}
	}
	f(history.Workload{Namespace: "ns", Kind: "Deployment", Name: "web"}, "gpupilot_workload")
	f(history.Workload{Namespace: "ns", Kind: "Namespace", Name: "ns"}, "gpupilot_namespace")
	if len(minutes) != 2 {
		t.Errorf("recorded are %v, want the Deployment and the namespace", minutes)
	}
}
