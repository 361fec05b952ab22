// SPDX-License-Identifier: Apache-2.0

// Package promtest runs a real Prometheus for tests. Debian's package will do.
package promtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Required is the environment variable that makes a missing Prometheus a failure.
const Required = "GPUPILOT_REQUIRE_PROMETHEUS"

// Serve starts Prometheus, which scrapes the page each second with the labels
// that it shows, and returns its address. It skips the test where no prometheus
// is on the PATH, unless the variable Required is set.
func Serve(t *testing.T, page string) string {
	t.Helper()
	return Scrape(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
}

// Scrape is Serve for an exporter, which sees what Prometheus accepts.
func Scrape(t *testing.T, exporter http.Handler) string {
	t.Helper()
	target := httptest.NewServer(exporter)
	t.Cleanup(target.Close)
	return Start(t, fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, honor_labels: true, static_configs: [{targets: [%q]}]}]\n",
		strings.TrimPrefix(target.URL, "http://")))
}

// Start starts Prometheus with the text of a prometheus.yml, and returns its address.
// It skips the test as Serve does.
func Start(t *testing.T, config string) string {
	t.Helper()
	return StartWith(t, config, "")
}

// StartWith is Start with samples of before, in OpenMetrics' text format.
func StartWith(t *testing.T, config, past string) string {
	t.Helper()
	program := Program(t, "prometheus")
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	// Prometheus does not tell which port it got, so it is given one. Where another
	// program takes that first, it is given another.
	for attempt := range 5 {
		address, storage := freeAddress(t), filepath.Join(dir, fmt.Sprint("data", attempt))
		if past != "" {
			backfill(t, past, storage)
		}
		log, ready := start(t, address, program, "--config.file="+file, "--web.listen-address="+address, "--storage.tsdb.path="+storage)
		switch {
		case ready:
			return "http://" + address
		case !strings.Contains(log, "address already in use"):
			t.Fatalf("Prometheus is not ready:\n%s", log)
		}
	}
	t.Fatal("every port was taken")
	return ""
}

// backfill writes samples into Prometheus's storage.
func backfill(t *testing.T, past, storage string) {
	t.Helper()
	file := storage + ".openmetrics"
	if err := os.WriteFile(file, []byte(past), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), Program(t, "promtool"), "tsdb", "create-blocks-from", "openmetrics", file, storage).CombinedOutput(); err != nil {
		t.Fatalf("promtool: %v\n%s", err, out)
	}
}

// Program finds prometheus or promtool on the PATH. It skips the test where the program
// is missing, unless the variable Required is set.
func Program(t *testing.T, name string) string {
	t.Helper()
	program, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv(Required) != "" {
			t.Fatalf("no %s on the PATH, and %s is set: install it, such as Debian's package prometheus", name, Required)
		}
		t.Skipf("no %s on the PATH; %s=1 makes this a failure", name, Required)
	}
	return program
}

// freeAddress is one that nobody listens at now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// patience bounds the wait for Prometheus: only a failure takes that long.
const patience = 2 * time.Minute

// start runs a Prometheus until it is ready, or has ended with what it logged.
func start(t *testing.T, address, program string, args ...string) (log string, ready bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	end := func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	t.Cleanup(end)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return out.String(), false
		case <-ctx.Done():
			end()
			return out.String(), false
		case <-tick.C:
		}
		if isReady(ctx, address) {
			return "", true
		}
	}
}

func isReady(ctx context.Context, address string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/-/ready", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK
}
