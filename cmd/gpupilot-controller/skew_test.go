// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// oldAgent serves the answers of an agent of an earlier version, recorded in testdata/compat: a node with two GPUs,
// each held by a pod. The times in them advance as those of an agent that collects every second. It is a
// scrape.Doer.
type oldAgent struct {
	page         string // of /metrics
	ignoresNames bool   // it answers ?name[]= with the whole page
	requests     []string
}

// alwaysShown are on a page of v0.1.0 whatever names are asked for.
var alwaysShown = []string{
	"gpupilot_collection_timestamp_seconds", "gpupilot_collection_interval_seconds",
	"gpupilot_device_last_success_timestamp_seconds", "gpupilot_gpu_allocation_info", "gpupilot_mig_device_info",
}

var collectionTimes = regexp.MustCompile(`(?m)^(gpupilot_(?:collection|device_last_success)_timestamp_seconds\S*) .*$`)

// Do implements scrape.Doer.
func (a *oldAgent) Do(req *http.Request) (*http.Response, error) {
	a.requests = append(a.requests, req.URL.String())
	page := a.page
	if names := req.URL.Query()["name[]"]; len(names) > 0 && !a.ignoresNames {
		page = selectFamilies(page, append(names, alwaysShown...))
	}
	page = collectionTimes.ReplaceAllString(page, "${1} "+strconv.FormatInt(time.Now().Unix(), 10))
	return &http.Response{
		StatusCode: http.StatusOK, ContentLength: int64(len(page)), Body: io.NopCloser(strings.NewReader(page)),
	}, nil
}

// selectFamilies returns the lines of a page that belong to metrics with these names.
func selectFamilies(page string, names []string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		name := strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE ")
		if end := strings.IndexAny(name, "{ "); end > 0 && slices.Contains(names, name[:end]) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// without returns a page without the lines of a metric.
func without(page, name string) string {
	return regexp.MustCompile(`(?m)^(# (HELP|TYPE) )?`+name+`[{ ].*\n`).ReplaceAllString(page, "")
}

// recordings lists the directories of testdata/compat, one for each version.
func recordings(t *testing.T) []string {
	t.Helper()
	dirs, err := filepath.Glob("testdata/compat/v*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("%d recordings, %v", len(dirs), err)
	}
	return dirs
}

func recording(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The controller reads the pages of agents of earlier versions, and of agents that lack what later versions added.
func TestScrapesOlderAgents(t *testing.T) {
	for _, dir := range recordings(t) {
		page := recording(t, dir, "metrics.txt")
		for what, a := range map[string]*oldAgent{
			"as recorded":                 {page: page},
			"ignores names":               {page: page, ignoresNames: true},
			"without a collection time":   {page: without(page, "gpupilot_collection_timestamp_seconds")},
			"without any time of its own": {page: without(without(page, "gpupilot_collection_timestamp_seconds"), "gpupilot_device_last_success_timestamp_seconds")},
			"without its interval":        {page: without(without(page, "gpupilot_collection_interval_seconds"), "gpupilot_collection_duration_seconds")},
		} {
			t.Run(filepath.Base(dir)+"/"+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testScrapesOlderAgent(t, a) })
			})
		}
	}
}

func testScrapesOlderAgent(t *testing.T, a *oldAgent) {
	store := series.New(series.Config{})
	s := scrape.New(scrape.Config{}, scrape.Deps{Client: a, Store: store, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	s.Sync([]scrape.Target{{
		Name: "agent", URL: url.URL{Scheme: "http", Host: "10.0.0.1:9400", Path: "/metrics"}, Kind: scrape.Agent,
		Fields: gpu.SetOf(gpu.GPUUtil, gpu.FBUsed),
	}})
	time.Sleep(10 * time.Second) // synctest's clock
	synctest.Wait()

	if !strings.Contains(a.requests[len(a.requests)-1], "name%5B%5D=DCGM_FI_DEV_GPU_UTIL") {
		t.Errorf("the last request was %s, want one for the names in use", a.requests[len(a.requests)-1])
	}
	f := func(pod string, field gpu.FieldID, want float64) {
		t.Helper()
		got, ok := store.Pod("llm", pod, field, time.Now(), 3*time.Second)
		if !ok || got.Value != want {
			t.Errorf("%v of %s is %v, %v; want %v", field, pod, got.Value, ok, want)
		}
	}
	f("handover-5f9c877c69-nzs68", gpu.GPUUtil, 100)
	f("handover-5f9c877c69-nzs68", gpu.FBUsed, 128000)
	f("handover-5f9c877c69-bttcz", gpu.GPUUtil, 0)
}

// The reports of GPUExporters and the conditions of nodes are made from these answers.
func TestReadsReportsOfOlderAgents(t *testing.T) {
	for _, dir := range recordings(t) {
		gpus := &oldAgent{page: recording(t, dir, "gpus.json"), ignoresNames: true}
		report, err := gpuexporter.ReadReport(t.Context(), gpus, url.URL{Scheme: "http", Host: "10.0.0.1:9400", Path: "/metrics"})
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if d := cmp.Diff(gpuexporter.Report{Models: map[string]int{"NVIDIA H200": 2}}, *report); d != "" {
			t.Errorf("%s: report (-want +got):\n%s", dir, d)
		}
		a := &oldAgent{page: recording(t, dir, "metrics.txt")}
		health, err := scrape.ReadHealth(t.Context(), a, url.URL{Scheme: "http", Host: "10.0.0.1:9400", Path: "/metrics"})
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if faults := health.Faults(time.Now()); len(health.GPUs) != 2 || len(faults) != 0 {
			t.Errorf("%s: health %+v with the faults %v, want two GPUs without a fault", dir, health.GPUs, faults)
		}
		a.page = strings.ReplaceAll(a.page, `gpupilot_device_up{uuid="GPU-a48e0ad5-b0bd-8890-90c6-7fa43e9cfb41"} 1`, `gpupilot_device_up{uuid="GPU-a48e0ad5-b0bd-8890-90c6-7fa43e9cfb41"} 0`)
		health, err = scrape.ReadHealth(t.Context(), a, url.URL{Scheme: "http", Host: "10.0.0.1:9400", Path: "/metrics"})
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		if faults := fmt.Sprint(health.Faults(time.Now())); !strings.Contains(faults, gpu.FaultLost) {
			t.Errorf("%s: the faults are %s, want %s", dir, faults, gpu.FaultLost)
		}
	}
}
