// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// serveMetrics serves /metrics on the pod's address, if the pod serves a workload.
// The returned function stops it.
func (p *podRun) serveMetrics() (func(), error) {
	if p.pod.Annotations[WorkloadAnnotation] == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(p.addr, MetricsPort).String())
	if err != nil {
		return func() {}, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write([]byte(p.metrics())) // the client may have disconnected
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			p.nodes.log.Error("pod serves no metrics", "pod", p.pod.Name, "err", err)
		}
	}()
	return func() { _ = s.Close(); <-served }, nil
}

// LateShare is the share of the requests of a simulated server whose first token takes between
// 1 s and 2.5 s. The others' takes up to 0.5 s.
const LateShare = 0.02

// The tokens of each request of a simulated server.
const promptTokens, outputTokens = 500, 100

// bucket is the number of observations up to an edge.
type bucket struct {
	edge string
	n    float64
}

// histogram writes a histogram whose observations have this mean.
func histogram(b *strings.Builder, model, metric string, mean, count float64, buckets []bucket) {
	fmt.Fprintf(b, "# TYPE %s histogram\n", metric)
	for _, x := range append(buckets, bucket{"+Inf", count}) {
		fmt.Fprintf(b, "%s_bucket{engine=\"0\",le=%q,model_name=%q} %g\n", metric, x.edge, model, x.n)
	}
	fmt.Fprintf(b, "%[1]s_count{engine=\"0\",model_name=%[2]q} %[3]g\n%[1]s_sum{engine=\"0\",model_name=%[2]q} %[4]g\n", metric, model, count, count*mean)
}

// metrics returns the exposition of an LLM server with vLLM's metric names.
func (p *podRun) metrics() string {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	name := p.pod.Annotations[WorkloadAnnotation]
	w := p.nodes.workloads[name]
	if p.phase != serving || w == nil {
		return ""
	}
	var b strings.Builder
	family := func(metric, kind, help string, value float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{engine=\"0\",model_name=%q} %g\n", metric, help, metric, kind, metric, name, value)
	}
	family("vllm:num_requests_running", "gauge", "Requests in flight.", w.now.Load.Running)
	family("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", w.now.Load.Waiting)
	family("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use (0 to 1).", 0.9*w.now.Load.Utilization/100)
	served := math.Floor(p.served)
	family("vllm:request_success_total", "counter", "Requests completed.", served)
	family("vllm:prompt_tokens_total", "counter", "Prompt tokens processed.", promptTokens*served)
	family("vllm:generation_tokens_total", "counter", "Tokens generated.", outputTokens*served)
	if w.Latency != nil {
		p.times.write(&b, name, served)
		return b.String()
	}
	late := math.Floor(served * LateShare)
	histogram(&b, name, "vllm:time_to_first_token_seconds", 0.3, served, []bucket{{"0.5", served - late}, {"1.0", served - late}, {"2.5", served}})
	histogram(&b, name, "vllm:inter_token_latency_seconds", 0.02, outputTokens*served, []bucket{{"0.025", outputTokens * served}, {"0.05", outputTokens * served}})
	histogram(&b, name, "vllm:request_time_per_output_token_seconds", 0.02, served, []bucket{{"0.025", served}, {"0.05", served}})
	return b.String()
}
