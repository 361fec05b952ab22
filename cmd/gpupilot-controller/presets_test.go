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

// Every preset finds its signals on a page in the form of its server's.
func TestPresetsReadTheirServersPages(t *testing.T) {
	f := func(preset v1alpha1.Preset, page string, want map[string]float64) {
		t.Helper()
		c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
			MaxReplicas: 2, Signals: []v1alpha1.Signal{{Preset: preset}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var all []policy.PodMetric
		for _, src := range c.Sources {
			for _, term := range src.AllTerms() {
				all = append(all, term...)
			}
		}
		got := scrapePage(t, "testdata/"+page, discovery.PodMetrics(all))
		for key, v := range want {
			if math.Abs(got[key]-v) > 1e-9 {
				t.Errorf("%s of %s: %s = %v, want %v", preset, page, key, got[key], v)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s of %s: %v, want %v", preset, page, got, want)
		}
	}
	f(v1alpha1.PresetVLLM, "vllm.prom", map[string]float64{
		"vllm:num_requests_running": 37, "vllm:num_requests_waiting": 12, "max(vllm:kv_cache_usage_perc)": 0.81,
		"vllm:request_success_total": 1000, `vllm:engine_sleep_state{sleep_state="awake"}`: 2,
	})
	f(v1alpha1.PresetVLLM, "vllm-0.8.prom", map[string]float64{
		"vllm:num_requests_running": 5, "vllm:num_requests_waiting": 0, "max(vllm:gpu_cache_usage_perc)": 0.125,
	})
	sglang := func(running, waiting, bootstrap, inflight, prealloc, transfer float64, more map[string]float64) map[string]float64 {
		for name, v := range map[string]float64{
			"num_running_reqs": running, "num_queue_reqs": waiting, "num_prefill_bootstrap_queue_reqs": bootstrap, "num_prefill_inflight_queue_reqs": inflight,
			"num_decode_prealloc_queue_reqs": prealloc, "num_decode_transfer_queue_reqs": transfer,
		} {
			if v >= 0 {
				more["sum(max by (dp_rank) (sglang:"+name+"))"] = v
			}
		}
		return more
	}
	f(v1alpha1.PresetSGLang, "sglang.prom", sglang(21, 3, 0, 0, 0, 0, map[string]float64{"max(sglang:token_usage)": 0.5, "sglang:num_requests_total": 1000}))
	f(v1alpha1.PresetSGLang, "sglang-decode.prom", sglang(12, 0, 0, 0, 40, 5, map[string]float64{"max(sglang:token_usage)": 0.5}))
	f(v1alpha1.PresetSGLang, "sglang-prefill.prom", sglang(1, 0, -1, 8, 0, 0, map[string]float64{
		"max(sglang:token_usage)": 0.25, "sum(max by (dp_rank) (sglang:num_prefill_prealloc_queue_reqs))": 30, // its older name
	}))
	f(v1alpha1.PresetTGI, "tgi.prom", map[string]float64{"tgi_batch_current_size": 4, "tgi_queue_size": 2, "tgi_request_count": 1100})
	f(v1alpha1.PresetTriton, "triton.prom", map[string]float64{
		"nv_inference_pending_request_count": 7, "nv_inference_compute_infer_duration_us": 9_000_000,
	})
	f(v1alpha1.PresetTriton, "triton-trtllm.prom", map[string]float64{
		`nv_trt_llm_request_metrics{request_type="scheduled"}`: 8, `nv_trt_llm_request_metrics{request_type="waiting"}`: 3,
		"nv_inference_pending_request_count": 0, "nv_inference_compute_infer_duration_us": 1_000_000,
	})
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
