// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/past"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/trust"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// historyProgram is the part of a program that keeps the history.
func historyProgram(t *testing.T, log *bytes.Buffer, args ...string) *program {
	t.Helper()
	c, err := parse(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{cfg: c, log: slog.New(slog.NewTextHandler(log, nil)), registry: prometheus.NewRegistry()}
	p.makeHistory()
	return p
}

var chat = history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}

func TestTheHistorySurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		p := historyProgram(t, &log, "--history-dir", dir)
		ctx, cancel := context.WithCancel(t.Context())
		var keeping sync.WaitGroup
		keeping.Go(func() { p.keepHistory(ctx) })
		synctest.Wait()
		p.history.recorder.Add(time.Now(), chat, []history.Value{history.Reading("gpupilot_autoscaler_gpus", 3)})
		time.Sleep(90 * time.Second)
		cancel()
		keeping.Wait() // releases the volume
		p = historyProgram(t, &log, "--history-dir", dir)
		p.readVolume()
		if n := p.history.store.Stats().Rows; n != 1 {
			t.Errorf("%d rows after a restart, want 1; the log is\n%s", n, log.String())
		}
		if up := testutil.ToFloat64(gathered{p.history, "gpupilot_history_volume_up"}); up != 1 {
			t.Errorf("gpupilot_history_volume_up is %v", up)
		}
	})
}

// gathered is a collector's metric of one name.
type gathered struct {
	prometheus.Collector
	name string
}

func (g gathered) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() { defer close(all); g.Collector.Collect(all) }()
	for m := range all {
		if strings.Contains(m.Desc().String(), strconv.Quote(g.name)) {
			ch <- m
		}
	}
}

// A volume that cannot be used does not stop the scaling.
func TestAnUnusableVolumeIsSaid(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := historyProgram(t, &log, "--history-dir", file)
	if !strings.Contains(log.String(), "--history-dir cannot be used") || !strings.Contains(log.String(), file) {
		t.Errorf("the log says\n%s", log.String())
	}
	if up := testutil.ToFloat64(gathered{p.history, "gpupilot_history_volume_up"}); up != 0 {
		t.Errorf("gpupilot_history_volume_up is %v", up)
	}
}

func TestTheHistoryIsReadFromPrometheus(t *testing.T) {
	asked := make(chan string, 1) // the first query
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.FormValue("query"):
		default:
		}
		start, _ := strconv.ParseFloat(r.FormValue("start"), 64)
		end, _ := strconv.ParseFloat(r.FormValue("end"), 64)
		var points []string
		for at := start; at <= end; at += 60 {
			points = append(points, fmt.Sprintf(`[%.0f,"2.5"]`, at))
		}
		label := `"__family":"gpupilot_autoscaler_replicas","state":"serving"`
		switch query := r.FormValue("query"); {
		case strings.Contains(query, "signal_value"):
			label = `"__family":"gpupilot_autoscaler_signal_value","signal":"Utilization","unit":"%","per":"replica"`
		case !strings.Contains(query, "gpupilot_autoscaler_replicas"):
			points = nil
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"namespace":"llm","name":"chat",%s},"values":[%s]}]}}`, label, strings.Join(points, ","))
	}))
	defer backend.Close()
	var log bytes.Buffer
	p := historyProgram(t, &log, "--prometheus-url", backend.URL)
	p.history.pause = time.Nanosecond
	p.backfillHistory(t.Context())
	if q := <-asked; q != `label_replace(avg by (namespace, name, state) (avg_over_time(gpupilot_autoscaler_replicas[1m])), "__family", "gpupilot_autoscaler_replicas", "", "")` {
		t.Errorf("the first query is %s", q)
	}
	n := 0
	for row := range p.history.store.Rows(chat, time.Unix(0, 0), time.Now()) {
		if n++; len(row.Values) != 2 || row.Values[0].Mean != 2.5 || row.Values[0].Max != 2.5 {
			t.Fatalf("row %v", row)
		}
	}
	if n != 14*24*60-1 { // the oldest minute has begun before
		t.Errorf("%d rows", n)
	}
}

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

func TestMinutesOfThePage(t *testing.T) {
	now := time.Now().Truncate(time.Minute)
	s := pageSource{controller.New(controller.Config{}, controller.Deps{Devices: trust.NewDevices(nil)}), history.New(history.Config{})}
	if err := s.minutes.Append(chat, now.Add(-time.Minute), []history.Value{history.Reading("gpupilot_autoscaler_gpus", 3)}); err != nil {
		t.Fatal(err)
	}
	q := &view.MinuteQuery{Kind: history.KindAutoscaler, From: now.Add(-time.Hour), To: now, Step: time.Minute}
	if m, ok, err := s.Minutes(chat.Namespace, chat.Name, q); !ok || err != nil || len(m.Metrics) != 1 {
		t.Errorf("a deleted workload: %+v, %v, %v", m, ok, err)
	}
	if m, ok, err := s.Minutes(chat.Namespace, "other", q); ok || err != nil {
		t.Errorf("an unknown workload: %+v, %v, %v", m, ok, err)
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
			m, _, err := queries.Range(ctx, engine.Query{PromQL: query, Payer: "test"}, from, to, time.Minute)
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
	if asked != 20 { // docs/history.md says how many there are in 14 days
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
