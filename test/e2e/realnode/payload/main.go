// SPDX-License-Identifier: Apache-2.0

// Command payload is the only program in the containers of the real node: the sandbox's pause and the pods' workload. It
// uses no CPU, no network and no files. Once it has printed a line, it ends at once and with status 0 when it is told to.
// With the argument vllm it answers and counts requests as a vLLM server does, and cuts those in flight when it ends.
package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	fmt.Println("started")
	if len(os.Args) > 1 && os.Args[1] == "vllm" {
		go serveVLLM()
	}
	<-stop
}

// serveVLLM serves /metrics on vLLM's port. POST /v1/completions?takes=4s is a request that takes as long, and
// PUT /running?n=20 sets the requests in flight.
func serveVLLM() {
	var running atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		for name, value := range map[string]float64{
			"vllm:num_requests_running": float64(running.Load()), "vllm:num_requests_waiting": 0, "vllm:kv_cache_usage_perc": 0.1,
		} {
			fmt.Fprintf(w, "# TYPE %s gauge\n%s{engine=\"0\",model_name=\"chat\"} %g\n", name, name, value)
		}
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		takes, err := time.ParseDuration(r.FormValue("takes"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		running.Add(1)
		defer running.Add(-1)
		select {
		case <-time.After(takes):
			fmt.Fprint(w, "done")
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("PUT /running", func(_ http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.FormValue("n"), 10, 64)
		running.Store(n)
	})
	server := &http.Server{Addr: ":8000", Handler: mux, ReadHeaderTimeout: time.Minute}
	fmt.Fprintln(os.Stderr, server.ListenAndServe())
	os.Exit(1)
}
