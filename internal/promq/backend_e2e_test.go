// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promq

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

// Prometheus itself, if it is on the PATH: Debian's package will do. With
// GPUPILOT_REQUIRE_PROMETHEUS=1, as in CI, it must be.
func TestRealPrometheus(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("GPUPILOT_REQUIRE_PROMETHEUS") == "" {
		t.Skipf("%v: it needs Prometheus, such as Debian's package prometheus", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "backlog{queue=\"a\"} 3\nbacklog{queue=\"b\"} 4\nold 1 1000\n")
	}))
	defer page.Close()
	c, err := New(Config{URL: serve(t, program, strings.TrimPrefix(page.URL, "http://"))})
	if err != nil {
		t.Fatal(err)
	}
	f := func(promql string, want float64, says string) {
		t.Helper()
		s, err := c.Query(t.Context(), promql)
		switch {
		case says == "" && (err != nil || s.Value != want || time.Since(s.At).Abs() > time.Minute):
			t.Errorf("%s: %+v, %v; want %v", promql, s, err, want)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says)):
			t.Errorf("%s: %v, want an error that says %q", promql, err, says)
		}
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		if s, err := c.Query(t.Context(), "sum(backlog)"); err == nil && s.Value == 7 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing was scraped within %v", patience)
		}
	}
	f("sum(backlog)", 7, "")
	f(`backlog{queue="a"}`, 3, "")
	f("1 + 1", 2, "")
	f("sum(none) or vector(0)", 0, "")
	f("backlog", 0, "several series")
	f("none", 0, "no series matches")
	f("vector(1)/0 - vector(1)/0", 0, "gives NaN")
	f("backlog[1m]", 0, "gives a matrix")
	f("sum(", 0, "parse error")
}

// patience bounds every wait for Prometheus: only a failure takes that long.
const patience = 2 * time.Minute

// serve starts Prometheus, which scrapes target each second, and returns its
// address when it is ready. Prometheus does not tell which port it got, so it is
// given one; where another program takes that first, it is given another.
func serve(t *testing.T, program, target string) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, static_configs: [{targets: [%q]}]}]\n", target)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for attempt := range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		_ = l.Close()
		log, ready := start(t, address, program, "--config.file="+file, "--web.listen-address="+address,
			"--storage.tsdb.path="+filepath.Join(dir, fmt.Sprint("data", attempt)))
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
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ended:
			return out.String(), false
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			<-ended
			return out.String(), false
		case <-tick.C:
		}
		resp, err := http.Get("http://" + address + "/-/ready")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return "", true
		}
	}
}
