// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Every preset finds its signals on a page in the form of its server's. The page begins with the
// name of the preset, and with what it reads.
func TestPresetsReadTheirServersPages(t *testing.T) {
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		t.Fatal(err)
	}
	read := map[v1alpha1.Preset]bool{}
	for _, file := range files {
		preset, want := expected(t, file)
		if preset == "" {
			continue // of a server without a preset
		}
		read[preset] = true
		got := scrapePage(t, file, discovery.PodMetrics(metricsOf(t, preset)))
		for key, v := range want {
			if math.Abs(got[key]-v) > 1e-9 {
				t.Errorf("%s of %s: %s = %v, want %v", preset, file, key, got[key], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s of %s: %v, want %v", preset, file, got, want)
		}
	}
	for _, preset := range policy.Presets() {
		if len(metricsOf(t, preset)) > 0 && !read[preset] {
			t.Errorf("no page of testdata begins with # preset %s reads:", preset)
		}
	}
}

// expected returns the preset that a page is for, and what it reads.
func expected(t *testing.T, file string) (preset v1alpha1.Preset, want map[string]float64) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(b), "\n")
	name, isPreset := strings.CutPrefix(lines[0], "# preset ")
	if !isPreset {
		return "", nil
	}
	want = map[string]float64{}
	for _, line := range lines[1:] {
		at := strings.LastIndex(line, " = ")
		if at < 0 {
			break
		}
		if want[strings.TrimPrefix(line[:at], "# ")], err = strconv.ParseFloat(line[at+3:], 64); err != nil {
			t.Fatalf("%s: %q: %v", file, line, err)
		}
	}
	return v1alpha1.Preset(strings.TrimSuffix(name, " reads:")), want
}

// metricsOf are the metrics that a preset reads from the workload's pods; none: it is a gateway's.
func metricsOf(t *testing.T, preset v1alpha1.Preset) (all []policy.PodMetric) {
	t.Helper()
	c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
		MaxReplicas: 2, Signals: []v1alpha1.Signal{{Preset: preset}},
	}})
	if err != nil && preset != v1alpha1.PresetDynamo { // which needs a model
		t.Fatal(err)
	}
	for _, src := range c.Sources {
		for _, term := range src.AllTerms() {
			all = append(all, term...)
		}
	}
	return all
}

// Each server of the documentation's table has the metrics of its row on its page, and signals
// that are made of the row find them.
func TestServersWithoutAPreset(t *testing.T) {
	b, err := os.ReadFile("../../docs/gpuautoscaler.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(b), "### Servers without a preset\n")
	table, _, ended := strings.Cut(table, "\nTwo `pods`")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if !found || !ended || len(rows) != 4 {
		t.Fatalf("the table is not found: %q", rows)
	}
	for _, row := range rows[2:] {
		cells := strings.Split(strings.Trim(row, "| "), "|")
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		port, want := intstr.Parse(cells[1]), map[string]float64{cells[3]: 20, cells[4]: 4, cells[5]: 0.6}
		a := &v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{MaxReplicas: 2}}
		for name := range want {
			a.Spec.Signals = append(a.Spec.Signals, v1alpha1.Signal{
				Pods: &v1alpha1.PodsSignal{Metric: name, Port: &port, Path: cells[2]}, Target: &v1alpha1.Target{Value: resource.MustParse("8")},
			})
		}
		c, err := policy.Compile(a)
		if err != nil {
			t.Fatal(err)
		}
		var all []policy.PodMetric
		for i := range c.Sources {
			for _, term := range c.Sources[i].AllTerms() {
				all = append(all, term...)
			}
		}
		if got := scrapePage(t, "testdata/"+cells[0]+".prom", discovery.PodMetrics(all)); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", cells[0], got, want)
		}
	}
}

// With an slo the two counters of the server's histogram are read as well, by
// their newer or their older name, and its buckets next to the limit.
func TestPacesReadTheirServersPages(t *testing.T) {
	f := func(preset v1alpha1.Preset, histogram string) {
		t.Helper()
		page := filepath.Join(t.TempDir(), "page.prom")
		text := strings.ReplaceAll(`# TYPE H histogram
H_bucket{engine="0",le="0.01"} 30
H_bucket{engine="0",le="+Inf"} 40
H_sum{engine="0"} 0.5
H_count{engine="0"} 40
H_bucket{engine="1",le="+Inf"} 2
H_sum{engine="1"} 0.25
H_count{engine="1"} 2
`, "H", histogram)
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
			MaxReplicas: 2, Signals: []v1alpha1.Signal{{
				Preset: preset, SLO: &v1alpha1.SLO{InterTokenLatency: &metav1.Duration{Duration: 50 * time.Millisecond}},
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var all []policy.PodMetric
		for _, term := range c.Sources[0].AllTerms() {
			all = append(all, term...)
		}
		below := histogram + "_bucket{le<=0.05}"
		want := map[string]float64{
			histogram + "_sum": 0.75, histogram + "_count": 42,
			below: 30, "le(" + below + ")": 0.01, histogram + "_bucket{le>=0.05}": 42, // the limit is above the last edge
		}
		got := scrapePage(t, page, discovery.PodMetrics(all))
		maps.DeleteFunc(got, func(key string, v float64) bool { return strings.Contains(key, "_queue_reqs") && v == 0 }) // queues that the page has not
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", preset, got, want)
		}
	}
	f(v1alpha1.PresetVLLM, "vllm:inter_token_latency_seconds")
	f(v1alpha1.PresetVLLM, "vllm:time_per_output_token_seconds")
	f(v1alpha1.PresetSGLang, "sglang:inter_token_latency_seconds")
	f(v1alpha1.PresetTriton, "vllm:inter_token_latency_seconds")
}

// scrapePage serves a page once as a pod would, and returns what was kept of it.
func scrapePage(t *testing.T, file string, metrics []page.Metric) map[string]float64 {
	t.Helper()
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(page) }))
	defer srv.Close()
	store := series.New(series.Config{})
	arrived := make(chan time.Time, 1)
	s := scrape.New(scrape.Config{Interval: 20 * time.Millisecond, Timeout: time.Minute}, scrape.Deps{
		Client: scrape.NewClient(), Store: store, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ string, at time.Time) {
			select {
			case arrived <- at:
			default:
			}
		},
	})
	address, err := url.Parse(srv.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	s.Sync([]scrape.Target{{
		Name: "pod", URL: *address, Kind: scrape.Pod, Metrics: metrics,
		Labels: series.TargetLabels{Namespace: "ns", Pod: "p"},
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	at := <-arrived
	got := map[string]float64{}
	for _, m := range metrics {
		if v, ok := store.PodMetric("ns", "p", m.Key, at, time.Minute); ok {
			got[m.Key] = v.Value
		}
	}
	cancel()
	<-ended
	return got
}
