// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/past"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

var chat = history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}

// The history has the names of /metrics, and no others.
func TestRecordedNamesAreDocumented(t *testing.T) {
	page := func(name string) string {
		b, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ours, history, fields := page("controller-metrics.md"), page("history.md"), page("metrics.md")
	has := func(text, name string) bool { return regexp.MustCompile("`" + name + "[`{]").MatchString(text) }
	for _, f := range recorded() {
		if !has(ours, f.Name) {
			t.Errorf("docs/controller-metrics.md has no %s", f.Name)
		}
		if begin, _, _ := strings.Cut(f.Name, "_gpu_"); !has(history, f.Name) && (f.Over == "" || !has(history, begin+"_gpu_…")) {
			t.Errorf("docs/history.md has no %s", f.Name)
		}
	}
	for _, f := range gpu.Fields() { // those without such a name are recorded by their own
		if !has(fields, f.Name) {
			t.Errorf("docs/metrics.md has no %s", f.Name)
		}
	}
}

// What a Prometheus has scraped gives the minutes back from which it came.
func TestTheHistoryIsReadFromItsOwnSeries(t *testing.T) {
	before, after := history.New(history.Config{}), history.New(history.Config{Retention: time.Hour})
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	deployment, namespace := history.Workload{Namespace: "llm", Kind: "Deployment", Name: "chat"}, history.Workload{Namespace: "llm", Kind: "Namespace", Name: "llm"}
	value := func(m history.Metric, mean, most, count float64) history.Value {
		return history.Value{Metric: m, Mean: mean, Max: most, Count: count}
	}
	nan := math.NaN()
	of := func(scope string) []history.Value { // in the order of their names, as they are read back
		metric := func(name, inUse string) history.Metric {
			return history.NewMetric("gpupilot_"+scope+name, "in_use", inUse)
		}
		return []history.Value{
			value("DCGM_FI_DEV_SM_CLOCK", 1500, 1500, 4), value(metric("_gpu_memory_used_bytes", "allocated"), 4<<30, 8<<30, 4),
			value(metric("_gpu_utilization_ratio", "active"), 0.8, 0.96, 2), value(metric("_gpu_utilization_ratio", "allocated"), 0, 0, 4),
			value(metric("_gpus", "active"), 2, 2, nan), value(metric("_gpus", "allocated"), 4, 4, nan),
		}
	}
	for minute := range 30 {
		at := now.Add(time.Duration(minute-31) * time.Minute)
		if minute == 12 {
			continue // missing
		}
		for w, values := range map[history.Workload][]history.Value{
			chat: {
				value("gpupilot_autoscaler_gpus", 4, 4, nan), value(`gpupilot_autoscaler_pods_sum{metric="vllm:num_requests_waiting"}`, 7, 7, nan),
				value(`gpupilot_autoscaler_replicas{state="serving"}`, 3, 3, nan), value(`gpupilot_autoscaler_signal_requests_per_second{signal="vllm"}`, 2.5, 2.5, nan),
				value(history.NewMetric("gpupilot_autoscaler_signal_tokens_per_second", "signal", "vllm", "type", "prompt"), 4000, 4000, nan),
				value(history.NewMetric("gpupilot_autoscaler_signal_value", "signal", "vllm", "unit", "requests", "per", "replica"), float64(minute), float64(minute), nan),
				value(history.NewMetric("gpupilot_autoscaler_signal_value", "signal", `"} or \ 1`, "per", "workload"), 1, 1, nan),
			},
			deployment: of("workload"), namespace: of("namespace"),
		} {
			if err := before.Append(w, at, values); err != nil {
				t.Fatal(err)
			}
		}
	}
	store := past.New(past.Config{}, past.Deps{Recent: engine.Join(), Minutes: before, Families: recorded()})
	queries, asked := engine.New(engine.Config{}, store), 0
	_, err := history.Backfill(t.Context(), history.BackfillConfig{
		Store: after, Pause: time.Nanosecond, Families: recorded(),
		Query: func(ctx context.Context, query string, from, to time.Time) (out []history.Recorded, _ error) {
			asked++
			m, _, err := queries.Range(ctx, engine.Query{PromQL: query, Payer: fair.Namespace("test")}, from, to, time.Minute)
			for _, s := range m {
				r := history.Recorded{Labels: s.Metric.Map()}
				for _, p := range s.Floats {
					r.Points = append(r.Points, history.Point{At: time.UnixMilli(p.T), Value: p.F})
				}
				out = append(out, r)
			}
			return out, err
		},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	if asked != 22 { // docs/history.md says how many there are in 14 days
		t.Errorf("%d queries", asked)
	}
	text := func(s *history.Store, w history.Workload) (out []string) {
		for row := range s.Rows(w, now.Add(-time.Hour), now) {
			row.Values = slices.DeleteFunc(row.Values, func(v history.Value) bool {
				return v.Metric == "DCGM_FI_DEV_SM_CLOCK" // is not on the controller's /metrics
			})
			var line []string
			for _, v := range row.Values {
				line = append(line, fmt.Sprintf("%s=%.3g/%.3g/%.3g", v.Metric, v.Mean, v.Max, v.Count))
			}
			out = append(out, row.At.Format("15:04 ")+strings.Join(line, " "))
		}
		return out
	}
	for _, w := range []history.Workload{chat, deployment, namespace} {
		if want, got := text(before, w), text(after, w); len(want) != 29 || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %s", w, cmp.Diff(want, got))
		}
	}
	if got := after.Workloads(); len(got) != 3 {
		t.Errorf("workloads %v", got)
	}
}

func TestHistoryMemory(t *testing.T) {
	for _, value := range []string{"512Ki", "1Ti", "much", ""} {
		if _, err := parse(t, nil, "--history-memory="+value); err == nil || !strings.Contains(err.Error(), "want a number of bytes from 1Mi to 64Gi") {
			t.Errorf("%q: %v", value, err)
		}
	}
}
