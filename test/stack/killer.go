// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// ErrKilled is the error of a run that was killed.
var ErrKilled = errors.New("killed")

// Killer is the API server behind a proxy, which kills the program that it is for when it sends its n-th request that
// changes something, with the request applied or not.
type Killer struct {
	*httptest.Server
	mu      sync.Mutex
	program *exec.Cmd
	n       int // counts down; at 0 it kills
	applied bool
	killed  string // the request
}

// NewKiller starts a proxy before an API server, until the test ends.
func NewKiller(t *testing.T, api *rest.Config) *Killer {
	t.Helper()
	transport, err := rest.TransportFor(api)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(api.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = transport
	k := &Killer{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if r.Method == http.MethodGet || r.URL.Query().Get("dryRun") != "" || r.ContentLength > 0 && r.Method == http.MethodDelete && isDryRun(r) {
			proxy.ServeHTTP(w, r)
			return
		}
		k.n--
		if k.n != 0 {
			proxy.ServeHTTP(w, r)
			return
		}
		k.killed = r.Method + " " + r.URL.Path
		if k.applied {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		_ = k.program.Process.Kill()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(k.Close)
	return k
}

// isDryRun reads a small body, and puts it back.
func isDryRun(r *http.Request) bool {
	b, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return err == nil && bytes.Contains(b, []byte(`"dryRun"`))
}

// Run runs gpupilot. kill is the number of the request that changes something at which it is killed; 0: none.
func (k *Killer) Run(t *testing.T, kill int, applied bool, args ...string) (string, error) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", k.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../../bin/gpupilot", append(args, "--kubeconfig", config)...)
	k.mu.Lock()
	k.program, k.n, k.applied, k.killed = cmd, kill, applied, ""
	k.mu.Unlock()
	out, err := cmd.CombinedOutput()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.killed != "" {
		return string(out), ErrKilled
	}
	return string(out), err
}

// Killed is the request at which the last run was killed.
func (k *Killer) Killed() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.killed
}

// MustRun runs gpupilot, which is not killed and does not fail.
func (k *Killer) MustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := k.Run(t, 0, false, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}
