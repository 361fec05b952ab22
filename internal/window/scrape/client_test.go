// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// configured makes a client from the text of a file, beside which other files lie.
func configured(t *testing.T, https bool, text string, files map[string]string) (*http.Client, string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, body := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "http.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := NewConfiguredClient(file, "", https)
	return c, dir, err
}

// exporter is a server with TLS and basic auth that counts its connections.
func exporter(t *testing.T, password *atomic.Pointer[string]) (srv *httptest.Server, ca string, conns, hits *atomic.Int64) {
	t.Helper()
	conns, hits = &atomic.Int64{}, &atomic.Int64{}
	srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, pass, _ := r.BasicAuth()
		if user != "prom" || pass != *password.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		hits.Add(1)
		_, _ = io.WriteString(w, "DCGM_FI_DEV_GPU_UTIL{UUID=\"G0\"} 5\ngpupilot_backend_up 1\n")
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	return srv, ca, conns, hits
}

// Exporters with TLS and a password are read over one connection each, for their
// values and their health; a password that is changed is read again.
func TestConfiguredClient(t *testing.T) {
	var password atomic.Pointer[string]
	old, next := "old", "next"
	password.Store(&old)
	srv, ca, conns, hits := exporter(t, &password)
	c, dir, err := configured(t, true, "basic_auth: {username: prom, password_file: password}\ntls_config: {ca_file: ca.crt, server_name: example.com}\n",
		map[string]string{"ca.crt": ca, "password": old})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Interval: 10 * time.Millisecond, MaxBackoff: 10 * time.Millisecond, Timeout: time.Minute},
		Deps{Client: NewClient(), Exporters: c, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	s.Sync([]Target{{Name: "a", URL: parse(srv.URL + "/"), Kind: DCGM}})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	more := func(n int64) {
		t.Helper()
		for from := hits.Load(); hits.Load() < from+n; {
			if ctx.Err() != nil {
				t.Fatalf("%d scrapes, states %+v", hits.Load(), s.States())
			}
			time.Sleep(time.Millisecond) // polls a real server
		}
	}
	more(20)
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections for one target", n)
	}
	password.Store(&next)
	if err := os.WriteFile(filepath.Join(dir, "password"), []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	more(5)
	if h, err := ReadHealth(ctx, c, parse(srv.URL+"/")); err != nil || h.BackendDown {
		t.Errorf("health: %+v, %v", h, err)
	}
	cancel()
	running.Wait()
}

// Credentials go to exporters only, whatever else is scraped.
func TestPodsGetNoCredentials(t *testing.T) {
	var auth sync.Map // by path
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth.Store(r.URL.Path, r.Header.Get("Authorization")+r.Header.Get("X-Secret"))
		_, _ = io.WriteString(w, "x 1\n")
	}))
	defer srv.Close()
	c, _, err := configured(t, false, "authorization: {credentials: secret}\nhttp_headers: {X-Secret: {values: [secret]}}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Timeout: time.Minute}, Deps{Client: NewClient(), Exporters: c, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	for kind, want := range map[Kind]string{Agent: "Bearer secretsecret", DCGM: "Bearer secretsecret", Pod: ""} {
		target := Target{Name: fmt.Sprint(kind), URL: parse(srv.URL + fmt.Sprint("/", kind)), Kind: kind}
		r := &runner{s: s, phase: newPhase(&s.cfg, target.Name), state: State{Name: target.Name, URL: target.URL.String()}}
		r.want.Store(&target)
		r.scrape(t.Context())
		if got, ok := auth.Load(fmt.Sprint("/", kind)); !ok || got != want {
			t.Errorf("kind %d got the credentials %q, want %q", kind, got, want)
		}
	}
}

// The agents' token goes to agents only. It is read for each scrape, so that a renewed one
// is sent at once, and it does not replace other credentials.
func TestOnlyAgentsGetTheToken(t *testing.T) {
	var auth sync.Map // by path
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		auth.Store(r.URL.Path, r.Header.Get("Authorization"))
		_, _ = io.WriteString(w, "x 1\n")
	}))
	defer srv.Close()
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	exporters, agents, err := ExporterClients("", token, false)
	if err != nil || exporters != nil {
		t.Fatal(exporters, err)
	}
	s := New(Config{Timeout: time.Minute}, Deps{Client: NewClient(), Dial: (&net.Dialer{}).DialContext, Exporters: exporters, Agents: agents, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	for _, now := range []string{"first", "renewed"} {
		if err := os.WriteFile(token, []byte(now+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for kind, want := range map[Kind]string{Agent: "Bearer " + now, DCGM: "", Pod: ""} {
			target := Target{Name: fmt.Sprint(kind), URL: parse(srv.URL + fmt.Sprint("/", kind)), Kind: kind}
			r := &runner{s: s, phase: newPhase(&s.cfg, target.Name), state: State{Name: target.Name, URL: target.URL.String()}}
			r.want.Store(&target)
			r.scrape(t.Context())
			if got, ok := auth.Load(fmt.Sprint("/", kind)); !ok || got != want {
				t.Errorf("kind %d got %q, want %q", kind, got, want)
			}
		}
	}
	file := filepath.Join(dir, "http.yaml")
	for text, ok := range map[string]bool{
		"authorization: {credentials: a}\n": false, "basic_auth: {username: a}\n": false, "http_headers: {X-A: {values: [b]}}\n": true,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ExporterClients(file, token, false); (err == nil) != ok {
			t.Errorf("%s with a token: %v", text, err)
		}
	}
}

// An exporter that redirects gets no second request, and sends no credentials on.
func TestConfiguredClientFollowsNobody(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	srv := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer srv.Close()
	c, _, err := configured(t, false, "follow_redirects: true\nauthorization: {credentials: secret}\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Get(srv.URL)
	if err != nil || resp.StatusCode != http.StatusFound {
		t.Errorf("%v, %v", resp, err)
	}
	if err == nil {
		_ = resp.Body.Close()
	}
}

func TestBadHTTPConfig(t *testing.T) {
	for text, want := range map[string]string{
		"basic_auth: {user: x}":                            "http.yaml",
		"tls_config: {insecure_skip_verify: true}":         "scraped over http",
		"tls_config: {ca_file: nope.crt}":                  "scraped over http",
		"authorization: {credentials: a}\nbearer_token: b": "http.yaml",
	} {
		if _, _, err := configured(t, false, text, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := NewConfiguredClient("/no/such/file", "", true); err == nil {
		t.Error("a file that does not exist is a configuration")
	}
}
