// SPDX-License-Identifier: Apache-2.0

package past

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// fortnight is a rig with 14 days of so many workloads: 15 metrics each, of which ten
// change each minute.
func fortnight(b *testing.B, workloads int) *rig {
	r, random := newRig(b, engine.Config{}), rand.New(rand.NewPCG(1, 2))
	var rows [32][]history.Value
	for i := range rows {
		for _, state := range []string{"current", "desired", "serving", "starting", "unschedulable"} {
			rows[i] = append(rows[i], mean(history.NewMetric("replicas", "state", state), 4))
		}
		for j := range 10 {
			v := 50 + 10*random.NormFloat64()
			m := history.NewMetric("gpu", "field", fmt.Sprint(j))
			if j == 0 {
				m = signal("vllm")
			}
			rows[i] = append(rows[i], history.Value{Metric: m, Mean: v, Max: v + 5, Count: 4})
		}
	}
	for before := int(history.Retention/time.Minute) - 1; before > 0; before-- {
		for i := range workloads {
			r.record(fmt.Sprint("ns", i%20), fmt.Sprint("workload", i), before, rows[(before*7+i)%len(rows)]...)
		}
	}
	return r
}

// Range queries over 14 days. bytes/workload is the memory of the minutes.
func BenchmarkFortnight(b *testing.B) {
	for _, workloads := range []int{1, 100} {
		r := fortnight(b, workloads)
		for _, q := range []struct {
			name, promql string
			step         time.Duration
		}{
			{"signal/30m", `signal_value`, 30 * time.Minute},
			{"signal/2m", `signal_value`, 2 * time.Minute},
			{"sum_of_replicas/30m", `sum by (namespace) (replicas{state="serving"})`, 30 * time.Minute},
			{"avg_over_1h/30m", `avg_over_time(signal_value[1h])`, 30 * time.Minute},
			{"all_replicas/30m", `replicas`, 30 * time.Minute},
		} {
			b.Run(fmt.Sprintf("%s/%d", q.name, workloads), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					answer, _, err := r.engine.Range(b.Context(), engine.Query{PromQL: q.promql, Payer: fair.Namespace("bench")}, now.Add(-history.Retention), now, q.step)
					if err != nil || len(answer) == 0 {
						b.Fatal(len(answer), err)
					}
				}
				b.ReportMetric(float64(r.minutes.Stats().Bytes)/float64(workloads), "bytes/workload")
			})
		}
	}
}

// The newest value, of workloads that the windows do not have.
func BenchmarkInstant(b *testing.B) {
	r := newRig(b, engine.Config{})
	for before := 1500; before > 0; before-- {
		for i := range 100 {
			r.record(fmt.Sprint("ns", i%20), fmt.Sprint("workload", i), before, serving(float64(before%7)), mean(signal("a"), math.Sin(float64(before))))
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		answer, _, err := r.engine.Instant(b.Context(), engine.Query{PromQL: "sum(signal_value)", Payer: fair.Namespace("bench")}, now)
		if err != nil || answer == nil {
			b.Fatal(answer, err)
		}
	}
}

// A workload with as many metrics as it may have.
func BenchmarkManyMetrics(b *testing.B) {
	r := newRig(b, engine.Config{})
	values := make([]history.Value, history.MaxMetrics)
	for before := int(history.Retention/time.Minute) - 1; before > 0; before-- {
		for i := range values {
			values[i] = mean(signal(fmt.Sprint("s", i)), float64((before*(i+1))%97))
		}
		r.record("ml", "chat", before, values...)
	}
	b.ReportAllocs()
	for b.Loop() {
		answer, _, err := r.engine.Range(b.Context(), engine.Query{PromQL: "signal_value", Payer: fair.Namespace("bench")}, now.Add(-history.Retention), now, time.Hour)
		if err != nil || len(answer) != history.MaxMetrics {
			b.Fatal(len(answer), err)
		}
	}
	b.ReportMetric(float64(r.minutes.Stats().Bytes), "bytes/workload")
}
