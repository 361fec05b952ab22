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
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpupilot/gpupilot/internal/autoscaler/controller"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/past"
	"github.com/gpupilot/gpupilot/internal/window/history"
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
	p := historyProgram(t, &log, "--history-dir", dir)
	minute := time.Now().Truncate(time.Minute).Add(-time.Minute)
	rows := func(add func(history.Workload, []history.Value)) {
		add(chat, []history.Value{{Metric: "replicas/serving", Mean: 3, Max: 4}})
	}
	p.history.record(minute, rows) // before the volume was read
	if n := p.history.store.Stats().Rows; n != 0 {
		t.Errorf("%d rows were added before the volume was read", n)
	}
	p.history.loaded.Store(true)
	p.history.record(minute, rows)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p.keepHistory(ended) // releases the volume
	p = historyProgram(t, &log, "--history-dir", dir)
	p.readHistory(t.Context())
	if n := p.history.store.Stats().Rows; n != 1 {
		t.Errorf("%d rows after a restart, want 1; the log is\n%s", n, log.String())
	}
	if up := testutil.ToFloat64(gathered{p.history, "gpupilot_history_volume_up"}); up != 1 {
		t.Errorf("gpupilot_history_volume_up is %v", up)
	}
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
		label := `"state":"serving"`
		switch query := r.FormValue("query"); {
		case strings.Contains(query, "signal_value"):
			label = `"signal":"Utilization","unit":"%","per":"replica"`
		case !strings.Contains(query, "gpupilot_autoscaler_replicas"):
			points = nil
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"namespace":"llm","name":"chat",%s},"values":[%s]}]}}`, label, strings.Join(points, ","))
	}))
	defer backend.Close()
	var log bytes.Buffer
	p := historyProgram(t, &log, "--prometheus-url", backend.URL)
	p.history.pause = time.Nanosecond
	p.readHistory(t.Context())
	if q := <-asked; q != "avg by (namespace, name, state) (avg_over_time(gpupilot_autoscaler_replicas[1m]))" {
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

// What a Prometheus has scraped gives the minutes back from which it came.
func TestTheHistoryIsReadFromItsOwnSeries(t *testing.T) {
	before, after := history.New(history.Config{}), history.New(history.Config{Retention: time.Hour})
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	deployment, namespace := history.Workload{Namespace: "llm", Kind: "Deployment", Name: "chat"}, history.Workload{Namespace: "llm", Kind: "Namespace", Name: "llm"}
	value := func(m history.Metric, mean, most, count float64) history.Value {
		return history.Value{Metric: m, Mean: mean, Max: most, Count: count}
	}
	nan := math.NaN()
	gpus := []history.Value{ // in the order of their names, as they are read back
		value("active/DCGM_FI_DEV_GPU_UTIL", 80, 96, 2), value("gpu/DCGM_FI_DEV_FB_USED", 4096, 8192, 4),
		value("gpu/DCGM_FI_DEV_GPU_UTIL", 40, 96, 4), value("gpu/DCGM_FI_DEV_SM_CLOCK", 1500, 1500, 4),
		value("gpus/active", 2, 2, nan), value("gpus/allocated", 4, 4, nan),
	}
	for minute := range 30 {
		at := now.Add(time.Duration(minute-31) * time.Minute)
		if minute == 12 {
			continue // missing
		}
		for w, values := range map[history.Workload][]history.Value{
			chat: {
				value("gpus/allocated", 4, 4, nan), value("pods/vllm:num_requests_waiting", 7, 7, nan), value("replicas/serving", 3, 3, nan),
				value("requests/vllm", 2.5, 2.5, nan), value(history.NewSignal("vllm", "requests", "replica"), float64(minute), float64(minute), nan),
			},
			deployment: gpus, namespace: gpus,
		} {
			if err := before.Append(w, at, values); err != nil {
				t.Fatal(err)
			}
		}
	}
	store := past.New(past.Config{}, past.Deps{Recent: engine.Join(), Minutes: before, Series: controller.NewMinuteSeries()})
	queries := engine.New(engine.Config{}, store)
	_, err := history.Backfill(t.Context(), history.BackfillConfig{
		Store: after, Pause: time.Nanosecond, Families: controller.BackfillFamilies(),
		Query: func(ctx context.Context, query string, from, to time.Time) (out []history.Recorded, _ error) {
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
	text := func(s *history.Store, w history.Workload) (out []string) {
		for row := range s.Rows(w, now.Add(-time.Hour), now) {
			row.Values = slices.DeleteFunc(row.Values, func(v history.Value) bool {
				return strings.HasSuffix(string(v.Metric), "_SM_CLOCK") || w != chat && v.Metric == "gpus/allocated" // the first is not on /metrics
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
