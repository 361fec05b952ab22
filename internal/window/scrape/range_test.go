// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// A value that a field cannot have is no value, whatever the name and the unit
// under which it comes.
func TestImpossibleValuesAreAbsent(t *testing.T) {
	f := func(line string, id gpu.FieldID, want float64) {
		t.Helper()
		x := newReader(t, Target{Kind: DCGM})
		x.read("DCGM_FI_DEV_GPU_TEMP{UUID=\"G0\",namespace=\"ns\",pod=\"p\"} 40\n" + strings.Replace(line, "{", `{UUID="G0",`, 1))
		x.want("p", id, want)
		x.want("p", gpu.GPUTemp, 40)
		counted, st := x.r.s.Stats().OutOfRange, x.r.state
		field, _ := gpu.Lookup(id)
		if in := want == want; in != (st.OutOfRange == 0) || in != (counted[field.Name] == 0) {
			t.Errorf("%s: counted %v, state %d", line, counted, st.OutOfRange)
		}
	}
	f(`DCGM_FI_DEV_GPU_UTIL{} 100`, gpu.GPUUtil, 100)
	f(`DCGM_FI_DEV_GPU_UTIL{} 250`, gpu.GPUUtil, none)
	f(`DCGM_FI_DEV_GPU_UTIL{} -1`, gpu.GPUUtil, none)
	f(`DCGM_FI_DEV_GPU_UTIL{} 4294967295`, gpu.GPUUtil, none)
	f(`DCGM_FI_DEV_GPU_UTIL{} 1e30`, gpu.GPUUtil, none)
	f(`DCGM_FI_DEV_GPU_UTIL_RATIO{} 0.55`, gpu.GPUUtil, 55)
	f(`DCGM_FI_DEV_GPU_UTIL_RATIO{} 1`, gpu.GPUUtil, 100)
	f(`DCGM_FI_DEV_GPU_UTIL_RATIO{} 2.5`, gpu.GPUUtil, none)
	f(`DCGM_FI_PROF_SM_ACTIVE{} 1.294000`, gpu.SMActive, 1)
	f(`DCGM_FI_PROF_SM_ACTIVE{} 55`, gpu.SMActive, none)
	f(`DCGM_FI_DEV_POWER_USAGE{} 140737488355328.000000`, gpu.PowerUsage, none)
	f(`DCGM_FI_DEV_FB_USED{} 2147483632`, gpu.FBUsed, none)
	f(`DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{} 2147483634`, gpu.NVLinkBandwidth, none)
	f(`DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{} 9223372036854775794`, gpu.NVLinkBandwidth, none)
}

// One impossible share of a container is not left out of its pod's sum.
func TestImpossibleShare(t *testing.T) {
	x := newReader(t, Target{Kind: Agent})
	x.read(fmt.Sprintf(`gpupilot_collection_timestamp_seconds %d
DCGM_FI_DEV_GPU_UTIL{UUID="G0"} 90
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="a"} 1
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="p",container="b"} 1
gpupilot_gpu_allocation_info{uuid="G0",namespace="ns",pod="q",container="c"} 1
gpupilot_pod_gpu_utilization_ratio{uuid="G0",namespace="ns",pod="p",container="a"} 0.25
gpupilot_pod_gpu_utilization_ratio{uuid="G0",namespace="ns",pod="p",container="b"} 1e9
gpupilot_pod_gpu_utilization_ratio{uuid="G0",namespace="ns",pod="q",container="c"} 0.5
`, x.now.Add(time.Second).Unix()))
	x.want("p", gpu.GPUUtil, none)
	x.want("q", gpu.GPUUtil, 50)
}

// The range of a pod's metric holds for each of its series and for what they
// come to. Of a metric without one nothing is known but that it is a number.
func TestRangesOfPodsMetrics(t *testing.T) {
	f := func(text string, want float64, out uint64) {
		t.Helper()
		x := newReader(t, Target{Kind: Pod, Labels: series.TargetLabels{Namespace: "ns", Pod: "p"}, Metrics: []page.Metric{
			{Key: "requests", Name: "running", Max: 1e6}, {Key: "other", Name: "other"},
		}})
		x.read(text + "\nother -1e30")
		got, ok := x.store.PodMetric("ns", "p", "requests", x.now, time.Second)
		if ok != (want == want) || ok && got.Value != want {
			t.Errorf("%s: %v, %v; want %v", text, got.Value, ok, want)
		}
		if n := x.r.s.Stats().OutOfRange; n["running"] != out || len(n) > 1 {
			t.Errorf("%s: counted %v, want %d", text, n, out)
		}
		if v, ok := x.store.PodMetric("ns", "p", "other", x.now, time.Second); !ok || v.Value != -1e30 {
			t.Errorf("%s: other is %v, %v", text, v, ok)
		}
	}
	f("running 7", 7, 0)
	f("running{a=\"1\"} 7\nrunning{a=\"2\"} 8", 15, 0)
	f("running -1", none, 1)
	f("running 1e7", none, 1)
	f("running{a=\"1\"} 7\nrunning{a=\"2\"} -3", none, 1)
	f("running{a=\"1\"} 700000\nrunning{a=\"2\"} 800000", none, 1)
	f("running NaN", none, 0)
}

func TestValuesOutOfRangeAreCounted(t *testing.T) {
	s := New(Config{}, Deps{})
	s.countOutOfRange(page.OutOfRange{{Metric: "a", Values: 1}, {Metric: "b", Values: 1}})
	s.countOutOfRange(page.OutOfRange{{Metric: "a", Values: 1}})
	if got := s.Stats().OutOfRange; !maps.Equal(got, map[string]uint64{"a": 2, "b": 1}) {
		t.Errorf("counted %v", got)
	}
}
