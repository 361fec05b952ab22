// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/gpupilot/gpupilot/internal/autoscaler/meters"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

func keeper(log *bytes.Buffer, cfg Config) *Keeper {
	cfg.MaxBytes, cfg.Log = 64<<20, slog.New(slog.NewTextHandler(log, nil))
	return New(cfg)
}

var chat = history.Workload{Namespace: "llm", Kind: "GPUAutoscaler", Name: "chat"}

func TestTheHistorySurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	var log bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		k := keeper(&log, Config{Dir: dir})
		ctx, cancel := context.WithCancel(t.Context())
		var keeping sync.WaitGroup
		keeping.Go(func() { k.Run(ctx) })
		synctest.Wait()
		k.Recorder.Add(time.Now(), chat, []history.Value{history.Reading("gpupilot_autoscaler_gpus", 3)})
		time.Sleep(90 * time.Second)
		cancel()
		keeping.Wait() // releases the volume
		k = keeper(&log, Config{Dir: dir})
		k.readVolume()
		if n := k.Store.Stats().Rows; n != 1 {
			t.Errorf("%d rows after a restart, want 1; the log is\n%s", n, log.String())
		}
		if up := testutil.ToFloat64(gathered{meter.Func(k.Meter), "gpupilot_history_volume_up"}); up != 1 {
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
	k := keeper(&log, Config{Dir: file})
	if !strings.Contains(log.String(), "--history-dir cannot be used") || !strings.Contains(log.String(), file) {
		t.Errorf("the log says\n%s", log.String())
	}
	if up := testutil.ToFloat64(gathered{meter.Func(k.Meter), "gpupilot_history_volume_up"}); up != 0 {
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
	prometheus, err := client.New(client.Config{URL: backend.URL, Timeout: Timeout, MaxAnswer: MaxAnswer})
	if err != nil {
		t.Fatal(err)
	}
	k := keeper(&log, Config{Backend: prometheus, Families: slices.Concat(meters.Recorded(), usage.Recorded())})
	k.pause = time.Nanosecond
	k.backfill(t.Context())
	if q := <-asked; q != `label_replace(avg by (namespace, name, state) (avg_over_time(gpupilot_autoscaler_replicas[1m])), "__family", "gpupilot_autoscaler_replicas", "", "")` {
		t.Errorf("the first query is %s", q)
	}
	n := 0
	for row := range k.Store.Rows(chat, time.Unix(0, 0), time.Now()) {
		if n++; len(row.Values) != 2 || row.Values[0].Mean != 2.5 || row.Values[0].Max != 2.5 {
			t.Fatalf("row %v", row)
		}
	}
	if n != 14*24*60-1 { // the oldest minute has begun before
		t.Errorf("%d rows", n)
	}
}
