// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package promql tests PromQL over the windows on a real control plane, with the
// controller's roles split as docs/promql.md describes: one replica scrapes and answers
// queries, another one scrapes, decides and serves the metrics APIs. Viewers have real
// tokens and rights.
package promql

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	mine  = "team-a" // the namespace of the viewer with few rights
	other = "team-b"
)

// loads are the loads of the workloads: one unit is 1 % of a GPU, spread over the pods.
var loads = map[string]*stack.Load{"alpha": {}, "beta": {}, "batch": {}, "group": {}, "forged": {}, "scaled": {}}

// rig is the stack that the tests share.
var rig struct {
	*stack.Stack
	dir     string // of the rule files
	queries string // the URL of the replica that answers queries
	args    []string
	asked   atomic.Uint64     // requests of the deciding replica with credentials
	tokens  map[string]string // by viewer
	revoke  func() error      // of the viewer "revoked"
}

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gpupilot-promql-")
	rig.dir = filepath.Join(dir, "rules")
	if err := errors.Join(err, os.Mkdir(rig.dir, 0o700)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// The deciding replica is configured before the other one has an address.
	var to atomic.Pointer[url.URL]
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		if strings.HasPrefix(r.In.Header.Get("Authorization"), "Bearer ") {
			rig.asked.Add(1)
		}
		r.SetURL(to.Load())
	}})
	credentials := filepath.Join(dir, "http.yml")
	cfg := stack.Config{
		Nodes: 3, HPASyncPeriod: time.Second, NoController: true,
		ControllerArgs: []string{"--roles=scrape,api,decide", "--external-metrics", "--prometheus-url=" + proxy.URL, "--prometheus-http-config=" + credentials},
	}
	for name, l := range loads {
		cfg.Workloads = append(cfg.Workloads, simnode.Workload{Name: name, Model: simnode.Model{Capacity: 100, Concurrency: 1, QueueLimit: 1}, Offered: l.At})
	}
	stack.Main(m, cfg, func(s *stack.Stack) error {
		s.OnClose(func() { _ = os.RemoveAll(dir) })
		s.OnClose(proxy.Close)
		rig.Stack = s
		return prepare(context.Background(), &to, credentials)
	})
}

// prepare starts both replicas, and makes the tenants.
func prepare(ctx context.Context, to *atomic.Pointer[url.URL], credentials string) error {
	for _, ns := range []string{mine, other} {
		if err := rig.Client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}); err != nil {
			return err
		}
	}
	rig.args = []string{"--roles=scrape,query", "--prometheus-rules", "--rule-files=" + filepath.Join(rig.dir, "*.yaml")}
	stop, err := startQueries(ctx, to)
	if err != nil {
		return err
	}
	rig.OnClose(stop)
	if err := makeTokens(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(credentials, []byte("authorization: {credentials: "+rig.tokens["all"]+"}\n"), 0o600); err != nil {
		return err
	}
	if err := rig.StartController(ctx); err != nil {
		return err
	}
	return deployBoth(ctx)
}

// startQueries starts the replica for queries.
func startQueries(ctx context.Context, to *atomic.Pointer[url.URL]) (stop func(), err error) {
	if rig.queries, stop, err = rig.StartReplica(ctx, "127.0.0.1", rig.args...); err != nil {
		return nil, err
	}
	u, err := url.Parse(rig.queries)
	to.Store(u)
	return stop, err
}

// makeTokens makes the viewers. "foreign" has a token for another program.
func makeTokens(ctx context.Context) error {
	rig.tokens = map[string]string{"nobody": ""}
	for name, in := range map[string][]string{"mine": {mine}, "all": {"*"}, "none": nil, "revoked": {"*"}} {
		remove, err := rig.CreateAccount(ctx, "promql-"+name, "gpupilot:viewer", in...)
		if err != nil {
			return err
		}
		if name == "revoked" {
			rig.revoke = remove
		}
		if rig.tokens[name], err = rig.Token(ctx, "promql-"+name); err != nil {
			return err
		}
	}
	foreign, err := rig.Token(ctx, "promql-all", "vault")
	rig.tokens["foreign"], rig.tokens["wrong"] = foreign, rig.tokens["all"][:len(rig.tokens["all"])-8]+"AAAAAAAA"
	return err
}

// deployBoth deploys a workload in each namespace: 40 % in mine, 70 % in the other one.
func deployBoth(ctx context.Context) error {
	loads["alpha"].Set(40)
	loads["beta"].Set(70)
	loads["forged"].Set(200)
	for ns, name := range map[string]string{mine: "alpha", other: "beta"} {
		if err := rig.Client.Create(ctx, stack.Deployment(ns, name, 1, 0)); err != nil {
			return err
		}
	}
	return nil
}

// get asks the replica for queries as a viewer.
func get(t *testing.T, viewer, path string, params url.Values) (status int, body string) {
	t.Helper()
	return ask(t, http.MethodGet, viewer, path, params)
}

func ask(t *testing.T, method, viewer, path string, params url.Values) (status int, body string) {
	t.Helper()
	at, form := rig.queries+path, ""
	if method == http.MethodPost {
		form = params.Encode()
	} else if len(params) > 0 {
		at += "?" + params.Encode()
	}
	req, err := http.NewRequestWithContext(t.Context(), method, at, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if token := rig.tokens[viewer]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return do(t, req)
}

// fetch asks without a token.
func fetch(t *testing.T, at string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (status int, body string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// query returns the answer to an instant query.
func query(t *testing.T, viewer, promql string) string {
	t.Helper()
	status, body := get(t, viewer, "/api/v1/query", url.Values{"query": {promql}})
	if status != http.StatusOK {
		t.Fatalf("%s as %s: %d %s", promql, viewer, status, body)
	}
	return body
}

// awaitQuery waits until the answer to a query has a text.
func awaitQuery(t *testing.T, viewer, promql, want string) {
	t.Helper()
	stack.Eventually(t, func() error {
		if body := query(t, viewer, promql); !strings.Contains(body, want) {
			return fmt.Errorf("%s as %s: %s, want %s", promql, viewer, body, want)
		}
		return nil
	})
}
