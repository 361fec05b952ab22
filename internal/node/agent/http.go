// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"html"
	"io"
	"net/http"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

// Handler is the agent's HTTP surface:
//
//	/             what there is, as HTML
//	/metrics      the exposition; 503 before the first tick
//	/health       always 200, as dcgm-exporter's, unless GPUs are required
//	/healthz      200 while ticks go on, else 503 and the reason: restart me
//	/readyz       the same; 503 also before the first tick
//	/api/v1/…     the last snapshot as JSON, see paths; 503 before the first tick
//	/dcgm/…       the same under the paths of NVIDIA's gpu-monitoring-tools
//	/api/v1/sim   takes the load of simulated GPUs, with --sim-push
//	/debug/pprof/ profiles of the agent, if they are asked for
func (a *Agent) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", a.inPlace(a.deps.Metrics))
	mux.HandleFunc("/health", a.serveHealth)
	started := time.Now()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		// A start that takes its time is no reason for a restart.
		a.answer(w, a.alive(time.Now(), started))
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		a.answer(w, a.alive(time.Now(), time.Time{}))
	})
	a.handlePaths(mux)
	if a.deps.Push != nil {
		mux.Handle(sim.PushPath, a.deps.Push)
	}
	mux.HandleFunc("/{$}", a.serveIndex)
	if a.cfg.Pprof {
		mux.HandleFunc("/debug/pprof/", serveProfile)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		mux.ServeHTTP(w, r)
	})
}

// alive says why the tick loop cannot be called alive at now; nil if it can.
// Before the first tick, the time since started counts, or since the loop
// looked for the first enumeration. Devices do not matter:
// they fail alone.
func (a *Agent) alive(now, started time.Time) error {
	allowed := gpu.MaxAge(a.Interval())
	last := started
	if ns := a.lastTick.Load(); ns != 0 {
		last = time.Unix(0, ns)
	} else if started.IsZero() {
		return fmt.Errorf("no collection yet")
	} else if ns := a.lastWait.Load(); ns != 0 {
		last = time.Unix(0, ns)
	}
	if age := now.Sub(last); age > allowed {
		return fmt.Errorf("the last collection was %s ago, more than %s", age.Round(time.Millisecond), allowed)
	}
	return nil
}

func (a *Agent) answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, err.Error()+"\n")
		return
	}
	_, _ = io.WriteString(w, "ok\n")
}

// serveHealth responds as dcgm-exporter does, headers included.
func (a *Agent) serveHealth(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	some := s != nil && len(s.Devices) > 0 && s.Up()
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Registry-Available", "true")
	h.Set("X-Reload-In-Progress", "false")
	if a.cfg.RequireGPUs && !some {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "no GPU can be read")
		return
	}
	_, _ = io.WriteString(w, "OK")
}

// ClientLimits bounds an agent's clients. scrapes is the number of requests that are handled at
// a time; 0: as many as there are connections. A place is held by those for /metrics and for
// JSON. Connections, pages and the kernel's buffers, of which a connection has 64 KiB in each
// direction, together take about 30 MiB at most.
func ClientLimits(scrapes int) listen.Limits {
	return listen.Limits{Connections: 128, PerSource: 8, Places: scrapes, Slack: time.Second, Buffer: 64 << 10}
}

// inPlace limits the concurrent requests of h.
func (a *Agent) inPlace(h http.Handler) http.Handler {
	if a.deps.Room == nil {
		return h
	}
	return a.deps.Room.Place(h)
}

func (a *Agent) serveIndex(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = fmt.Fprintf(w, `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>gpupilot-agent</title>
<h1>gpupilot-agent</h1>
<p>Version %s, node %s, every %s.</p>
<ul>
<li><a href="/metrics">/metrics</a>: what Prometheus reads
<li><a href="/api/v1/gpus">/api/v1/gpus</a>: the same and more as JSON
<li><a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>: does it collect?
</ul>
</html>
`, html.EscapeString(a.cfg.Version), html.EscapeString(a.cfg.Node), a.Interval())
}
