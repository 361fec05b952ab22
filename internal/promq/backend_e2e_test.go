// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package promq

import (
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

// Prometheus itself, if it is on the PATH: Debian's package will do.
func TestRealPrometheus(t *testing.T) {
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("no prometheus on the PATH")
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
	for deadline := time.Now().Add(time.Minute); ; {
		if s, err := c.Query(t.Context(), "sum(backlog)"); err == nil && s.Value == 7 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was scraped within a minute")
		}
		time.Sleep(100 * time.Millisecond)
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

// serve starts Prometheus, which scrapes target each second, and returns its address.
func serve(t *testing.T, program, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, static_configs: [{targets: [%q]}]}]\n", target)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return "http://" + address
}
