// SPDX-License-Identifier: Apache-2.0

// Package promtest runs a real Prometheus for tests. Debian's package will do.
package promtest

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
)

// Required is the environment variable that makes a missing Prometheus a failure.
const Required = "GPUPILOT_REQUIRE_PROMETHEUS"

// Serve starts Prometheus, which scrapes the page each second with the labels
// that it shows, and returns its address. It skips the test where no prometheus
// is on the PATH, unless the variable Required is set.
func Serve(t *testing.T, page string) string {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv(Required) != "" {
			t.Fatalf("no prometheus on the PATH, and %s is set: install it, such as Debian's package prometheus", Required)
		}
		t.Skipf("no prometheus on the PATH; %s=1 makes this a failure", Required)
	}
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, page) }))
	t.Cleanup(target.Close)
	address := freeAddress(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	text := fmt.Sprintf("global: {scrape_interval: 1s}\nscrape_configs: [{job_name: x, honor_labels: true, static_configs: [{targets: [%q]}]}]\n",
		strings.TrimPrefix(target.URL, "http://"))
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
