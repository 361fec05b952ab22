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

// serveMetrics serves /metrics on the pod's address, if the pod belongs to a workload.
// The returned function stops it.
func (p *podRun) serveMetrics() (func(), error) {
	if p.nodes.workloads[p.pod.Annotations[WorkloadAnnotation]] == nil {
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

// metrics returns the exposition of an LLM server with vLLM's metric names.
func (p *podRun) metrics() string {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	name := p.pod.Annotations[WorkloadAnnotation]
	w := p.nodes.workloads[name]
	if p.phase != serving {
		return ""
	}
	var b strings.Builder
	family := func(metric, kind, help string, value float64) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s{engine=\"0\",model_name=%q} %g\n", metric, help, metric, kind, metric, name, value)
	}
	family("vllm:num_requests_running", "gauge", "Requests in flight.", w.now.Load.Running)
	family("vllm:num_requests_waiting", "gauge", "Requests waiting to be processed.", w.now.Load.Waiting)
	family("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use (0 to 1).", 0.9*w.now.Load.Utilization/100)
	family("vllm:request_success_total", "counter", "Requests completed.", math.Floor(p.served))
	return b.String()
}
