// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package tokens tests agents that require a token, on a real control plane.
package tokens

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/node/tokenreview"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "llm"
	workload  = "chat"
)

var rig *stack.Stack

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{Nodes: 2, GPUs: 4, AgentTokens: true}, func(s *stack.Stack) error { rig = s; return nil })
}

// addresses are those of the agents.
func addresses(t *testing.T) (out []string) {
	t.Helper()
	var list corev1.PodList
	if err := rig.Client.List(t.Context(), &list, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"}); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		out = append(out, "http://"+list.Items[i].Status.PodIP+":9400")
	}
	if len(out) != 2 {
		t.Fatalf("agents at %v", out)
	}
	return out
}

var pods atomic.Uint32

// pod is a client with an address of its own, which has not used its budget.
func pod(t *testing.T) *http.Client {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 9, 0, byte(pods.Add(1)))}}
	c := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// get returns the status and the body of an answer; the status 0 is an error.
func get(t *testing.T, c *http.Client, url, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(b)
}

func account(t *testing.T, name, role string, in ...string) {
	t.Helper()
	remove, err := rig.CreateAccount(t.Context(), name, role, in...)
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tokenOf(t *testing.T, name string, audiences ...string) string {
	t.Helper()
	token, err := rig.Token(t.Context(), name, audiences...)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestWhoReadsAgents(t *testing.T) {
	account(t, "tenant", "view")
	account(t, "prometheus", "gpupilot:metrics-reader", "*")
	us, them := pod(t), pod(t)
	f := func(c *http.Client, path, token string, want int) {
		t.Helper()
		for _, agent := range addresses(t) {
			stack.Eventually(t, func() error { // the API server knows a new binding after a while, and may be slow
				got, body := get(t, c, agent+path, token)
				if got != http.StatusOK && strings.Contains(body, "GPU-") || got == http.StatusOK && want != got {
					t.Fatalf("%s%s: %d, want %d; %.200s", agent, path, got, want, body)
				}
				if got != want {
					return fmt.Errorf("%s%s: %d, want %d; %.200s", agent, path, got, want, body)
				}
				return nil
			})
		}
	}
	for _, open := range []string{"/healthz", "/readyz", "/health"} {
		f(them, open, "", http.StatusOK)
	}
	for _, path := range []string{"/metrics", "/api/v1/gpus", "/api/v1/gpus/0", "/api/v1/discovery", "/dcgm/device/info/id/0", "/dcgm/status/json"} {
		f(them, path, "", http.StatusUnauthorized)
		f(us, path, tokenOf(t, "prometheus"), http.StatusOK)
	}
	f(them, "/metrics", tokenOf(t, "tenant"), http.StatusForbidden)
	f(them, "/metrics", tokenOf(t, "tenant", tokenreview.Audience), http.StatusForbidden)
	f(them, "/metrics", tokenOf(t, stack.ControllerAccount, "gpupilot.dev"), http.StatusUnauthorized)
	f(us, "/metrics", tokenOf(t, stack.ControllerAccount, tokenreview.Audience), http.StatusOK)
	// What the controller sends to agents is worth nothing at the API server.
	token := tokenOf(t, stack.ControllerAccount, tokenreview.Audience)
	cfg := rest.AnonymousClientConfig(rig.REST)
	cfg.BearerToken = token
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := set.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("the API server answers %v to the agents' token", err)
	}
}

// failures are the controller's scrapes that failed, by reason, but for those that this machine was too slow for.
func failures(t *testing.T) (n float64) {
	t.Helper()
	code, body := get(t, http.DefaultClient, rig.ControllerURL+"/metrics", "")
	if code != http.StatusOK {
		t.Fatalf("the controller's metrics: %d %.200s", code, body)
	}
	for _, m := range failed.FindAllStringSubmatch(body, -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		if m[1] != "timeout" && m[1] != "stale" {
			n += v
		}
	}
	return n
}

var failed = regexp.MustCompile(`(?m)^gpupilot_scrape_failures_total\{reason="([^"]*)"\} (\S+)$`)

// The controller scales as before. While its token is renewed again and again, and a
// tenant's pod floods the agents with tokens, no scrape fails.
func TestScalesWhileTokensRotate(t *testing.T) {
	rig.Offer(workload, 0.2)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := rig.Client.Create(t.Context(), ns); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	d := stack.Deployment(namespace, workload, 1, time.Second)
	stack.Eventually(t, func() error { return client.IgnoreAlreadyExists(rig.Client.Create(t.Context(), d)) })
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), d) })
	stack.Eventually(t, func() error {
		return rig.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  minReplicas: 1
  maxReplicas: 8
  signals:
  - gpu: {metric: Utilization}
    target: {value: "60"}
`, workload, namespace))
	})
	before := failures(t)
	account(t, "flood", "view")
	theirs := tokenOf(t, "flood", tokenreview.Audience)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var flood sync.WaitGroup
	for i, agent := range addresses(t) {
		c := pod(t)
		flood.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				token := theirs
				if n%2 == 0 {
					token = fmt.Sprintf("%s%d-%d", theirs, i, n)
				}
				if got, _ := get(t, c, agent+"/metrics", token); got == http.StatusOK {
					t.Error("a tenant reads an agent")
				}
				time.Sleep(time.Millisecond) // real load
			}
		})
	}
	for range 12 {
		if err := rig.RotateToken(t.Context()); err != nil {
			t.Fatal(err)
		}
		rig.Scraped(t, 1)
	}
	rig.Offer(workload, 1.8)
	stack.Eventually(t, func() error {
		if n, err := rig.Replicas(t.Context(), namespace, workload); err != nil || n < 3 {
			return fmt.Errorf("%d replicas, want at least 3 (%v)", n, err)
		}
		return nil
	})
	cancel()
	flood.Wait()
	if after := failures(t); after != before {
		t.Errorf("%v scrapes failed", after-before)
	}
}
