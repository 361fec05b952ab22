// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const kubeconfig = `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
	"clusters": [{"name": "x", "cluster": {"server": "SERVER"}}], "users": [{"name": "x", "user": {}}],
	"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`

// Without an API server the controller starts, is not ready, and waits.
func TestStartsWithoutAnAPIServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(kubeconfig, "SERVER", "http://127.0.0.1:1")), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parse(t, nil, "--kubeconfig", file, "--roles", "scrape,decide")
	if err != nil {
		t.Fatal(err)
	}
	p, err := assemble(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.run(ctx, l) }()
	client := &http.Client{Timeout: time.Minute}
	for path, want := range map[string]int{
		"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable, "/": http.StatusOK,
		"/metrics": http.StatusUnauthorized, "/api/v1/view": http.StatusUnauthorized,
	} {
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}
