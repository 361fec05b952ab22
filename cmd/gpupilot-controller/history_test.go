// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpupilot/gpupilot/internal/history"
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
	asked := make(chan string, 1000)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.FormValue("query")
		start, _ := strconv.ParseFloat(r.FormValue("start"), 64)
		end, _ := strconv.ParseFloat(r.FormValue("end"), 64)
		var points []string
		for at := start; at <= end; at += 60 {
			points = append(points, fmt.Sprintf(`[%.0f,"2.5"]`, at))
		}
		label := `"state":"serving"`
		if strings.Contains(r.FormValue("query"), "signal_value") {
			label = `"signal":"Utilization"`
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

func TestHistoryMemory(t *testing.T) {
	for _, value := range []string{"512Ki", "1Ti", "much", ""} {
		if _, err := parse(t, nil, "--history-memory="+value); err == nil || !strings.Contains(err.Error(), "want a number of bytes from 1Mi to 64Gi") {
			t.Errorf("%q: %v", value, err)
		}
	}
}
