// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpupilot/gpupilot/internal/autoscaler/access"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
)

// The values of --page-auth.
const (
	pageAuthToken = "token"
	pageAuthNone  = "none"
)

// maxConnections bounds the open connections of --address. Each open page takes a few,
// Prometheus and the kubelet one each.
const maxConnections = 512

// Bounds of /metrics.
const (
	metricsAtOnce  = 4
	metricsTimeout = 10 * time.Second
)

// pageAccess adapts access.Reviewer to webui.Access.
type pageAccess struct{ *access.Reviewer }

// Authenticate implements webui.Access.
func (a pageAccess) Authenticate(ctx context.Context, token string) (webui.Viewer, error) {
	v, err := a.Reviewer.Authenticate(ctx, token)
	if v == nil || err != nil {
		return nil, err // not a nil *access.Viewer
	}
	return v, nil
}

// makePage makes the page and its access control.
func (p *program) makePage() (err error) {
	if p.cfg.pageAuth == pageAuthNone {
		if !isLoopback(p.cfg.address) {
			p.log.Warn("the page shows all namespaces without authentication: bind --address to loopback, or set --page-auth=token",
				"address", p.cfg.address, "page-auth", p.cfg.pageAuth)
		}
		p.page = webui.New(p.pageSource(), nil)
		p.registry.MustRegister(meter.Func(p.page.Meter))
		return nil
	}
	if p.access, err = access.New(p.clients.Config, p.log); err != nil {
		return fmt.Errorf("--page-auth %s: %w", p.cfg.pageAuth, err)
	}
	p.page = webui.New(p.pageSource(), pageAccess{p.access})
	p.registry.MustRegister(meter.Func(p.page.Meter), meter.Func(p.access.Meter))
	return nil
}

// isLoopback reports whether an address can be reached from this machine only.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (p *program) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", p.page.Handler())
	p.promql.register(mux)
	mux.Handle("GET /metrics", p.page.GuardMetrics(promhttp.HandlerFor(p.registry, promhttp.HandlerOpts{
		Registry: p.registry, MaxRequestsInFlight: metricsAtOnce, Timeout: metricsTimeout,
	})))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !p.ready.Load() {
			http.Error(w, "the API server's objects have not been listed yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}
