// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// serviceRow is what a GPUAutoscaler with one signal records beside six fields of its
// GPUs: two thirds of the values change each minute.
func serviceRow(r *rand.Rand, values []Value) []Value {
	values = values[:0]
	for _, state := range []string{"current", "desired", "serving", "starting", "unschedulable"} {
		values = append(values, Reading(NewMetric("gpupilot_autoscaler_replicas", "state", state), 4))
	}
	for _, m := range []Metric{
		`gpupilot_autoscaler_signal_value{per="replica",signal="vllm",unit="requests"}`, `gpupilot_autoscaler_signal_requests_per_second{signal="vllm"}`,
		`gpupilot_autoscaler_pods_sum{metric="vllm:num_requests_running"}`, `gpupilot_autoscaler_pods_sum{metric="vllm:num_requests_waiting"}`,
		`gpupilot_workload_gpu_utilization_ratio{in_use="allocated"}`, `gpupilot_workload_gpu_memory_utilization_ratio{in_use="allocated"}`,
		`gpupilot_workload_gpu_memory_used_bytes{in_use="allocated"}`, `gpupilot_workload_gpu_memory_free_bytes{in_use="allocated"}`,
		`gpupilot_workload_gpu_power_watts{in_use="allocated"}`, `gpupilot_workload_gpu_temperature_celsius{in_use="allocated"}`,
	} {
		mean := 50 + 10*r.NormFloat64()
		values = append(values, Value{Metric: m, Mean: mean, Max: mean + 5*r.Float64(), Count: 4})
	}
	return values
}

// A minute of so many workloads, with 15 metrics each. bytes/value is the memory of a
// stored number (a mean, a maximum or a count) after hours of noise.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n, "workloads"), func(b *testing.B) {
			s, r := New(Config{MaxBytes: 1 << 40}), rand.New(rand.NewPCG(1, 2))
			keys := make([]Workload, n)
			for i := range keys {
				keys[i] = workload(fmt.Sprint("ns", i%50), fmt.Sprint("workload", i))
			}
			values := make([][]Value, 32)
			for i := range values {
				values[i] = serviceRow(r, nil)
			}
			b.ReportAllocs()
			minute := 0
			for b.Loop() {
				for i, w := range keys {
					if err := s.Append(w, at(minute), values[(minute*7+i)%len(values)]); err != nil {
						b.Fatal(err)
					}
				}
				minute++
			}
			for minute < 300 && n <= 1000 { // so that the memory is that of hours
				for i, w := range keys {
					_ = s.Append(w, at(minute), values[(minute*7+i)%len(values)])
				}
				minute++
			}
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Rows*15*3), "bytes/value")
			b.ReportMetric(float64(st.Bytes)/float64(n), "bytes/workload")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
		})
	}
}

// A minute of so many workloads at the memory limit: each append drops older rows.
func BenchmarkAppendAtTheLimit(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n, "workloads"), func(b *testing.B) {
			s, r := New(Config{MaxBytes: int64(n) * 8 << 10}), rand.New(rand.NewPCG(1, 2))
			keys := make([]Workload, n)
			for i := range keys {
				keys[i] = workload(fmt.Sprint("ns", i%50), fmt.Sprint("workload", i))
			}
			values := make([][]Value, 32)
			for i := range values {
				values[i] = serviceRow(r, nil)
			}
			add := func(minute int) {
				for i, w := range keys {
					if err := s.Append(w, at(minute), values[(minute*7+i)%len(values)]); err != nil {
						b.Fatal(err)
					}
				}
			}
			minute := 0
			for s.Stats().EvictedRows == 0 {
				add(minute)
				minute++
			}
			for b.Loop() {
				add(minute)
				minute++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
		})
	}
}

// A day, and all 14 days, of one workload with 15 metrics.
func BenchmarkRange(b *testing.B) {
	s, r := New(Config{}), rand.New(rand.NewPCG(1, 2))
	w := workload("ml", "chat")
	const minutes = 14 * 24 * 60
	var values []Value
	for minute := range minutes {
		values = serviceRow(r, values)
		if err := s.Append(w, at(minute), values); err != nil {
			b.Fatal(err)
		}
	}
	for _, days := range []int{1, 14} {
		for _, metrics := range [][]Metric{{`gpupilot_autoscaler_signal_value{per="replica",signal="vllm",unit="requests"}`}, nil} {
			b.Run(fmt.Sprintf("%ddays/%dmetrics", days, len(metrics)), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					n := 0
					for row := range s.Rows(w, at(minutes).Add(-time.Duration(days)*24*time.Hour), at(minutes), metrics...) {
						n += len(row.Values)
					}
					if n < days*1000 {
						b.Fatal(n)
					}
				}
			})
		}
	}
	b.ReportMetric(float64(s.Stats().Bytes)/float64(s.Stats().Rows*45), "bytes/value")
}
