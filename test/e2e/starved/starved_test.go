// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package starved tests that scaling and the lease go first where the API server is slow.
package starved

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	// each is the time that the slow API server takes for a write. It does one at a time, in
	// the order of their arrival, and does not notice that a client has gone.
	each = 200 * time.Millisecond
	// noisy is the number of GPUAutoscalers of the attacker. Each wants a new status every
	// 5 s, so that all of them want twelve times the writes that there are.
	noisy = 300
	// slowest is the longest time between a load and the replicas for it. It is about 2 s
	// without other tenants: two writes of the lease and one of a status may be before it.
	slowest  = 6 * time.Second
	capacity = 10.0
	patience = stack.Patience
)

// slowly forwards requests as the controller's account does, and delays writes.
type slowly struct {
	proxy *httputil.ReverseProxy

	mu   sync.Mutex
	free time.Time // when the next write is done
}

func (s *slowly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		s.mu.Lock()
		s.free = later(s.free, time.Now()).Add(each)
		wait := time.Until(s.free)
		s.mu.Unlock()
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return
		}
	}
	s.proxy.ServeHTTP(w, r)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// backlog is the time that the writes take that are under way.
func (s *slowly) backlog() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, time.Until(s.free))
}

// startSlowly serves the API server slowly, and returns a kubeconfig.
func startSlowly(t *testing.T, s *stack.Stack) (server *slowly, kubeconfig string) {
	t.Helper()
	rc, err := s.AccountREST(stack.ControllerAccount)
	must(t, err)
	transport, err := rest.TransportFor(rc)
	must(t, err)
	to, err := url.Parse(s.Cluster.URL())
	must(t, err)
	server = &slowly{proxy: httputil.NewSingleHostReverseProxy(to)}
	server.proxy.Transport, server.proxy.FlushInterval = transport, -1
	server.proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h := httptest.NewServer(server)
	t.Cleanup(h.CloseClientConnections)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(kubeconfig, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, h.URL), 0o600))
	return server, kubeconfig
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Hundreds of GPUAutoscalers of one namespace change their statuses and replicas all the
// time, and the API server does five writes per second. The lease is kept, and another
// namespace's workload is scaled in time.
func TestStarvedAPIServer(t *testing.T) {
	load := &stack.Load{}
	s, err := stack.Start(t.Context(), stack.Config{
		Nodes: 2, NoController: true, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Workloads: []simnode.Workload{{
			Name: "quiet", Model: sim.Workload{Capacity: capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At,
		}},
	})
	must(t, err)
	defer s.Close()
	server, kubeconfig := startSlowly(t, s)
	must(t, s.StartController(t.Context(), "--kubeconfig", kubeconfig))
	for _, ns := range []string{"quiet", "noisy"} {
		must(t, s.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
	}
	load.Set(0.3 * capacity)
	must(t, s.Client.Create(t.Context(), stack.Deployment("quiet", "quiet", 1, time.Second)))
	must(t, s.Client.Create(t.Context(), autoscaler("quiet", "quiet", v1alpha1.ActuationScale, v1alpha1.Signal{
		GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")},
	})))
	eventually(t, func() error {
		var a v1alpha1.GPUAutoscaler
		err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: "quiet", Name: "quiet"}, &a)
		if err == nil && a.Status.ServingReplicas != 1 {
			err = fmt.Errorf("%d replicas serve", a.Status.ServingReplicas)
		}
		return err
	})
	alone := []time.Duration{react(t, s, load), react(t, s, load)}
	attack(t, s)
	eventually(t, func() error {
		if b := server.backlog(); b < 2*each {
			return fmt.Errorf("writes take %s only: nothing is attacked", b)
		}
		return nil
	})
	var beside []time.Duration
	for range 4 {
		beside = append(beside, react(t, s, load))
	}
	t.Logf("scaled within %v alone, and within %v beside the attack; the writes under way take %s", alone, beside, server.backlog())
	if d := slices.Max(beside); d > slowest {
		t.Errorf("another namespace's workload was scaled after %s, want at most %s", d, slowest)
	}
	log, err := os.ReadFile(s.ControllerLog())
	must(t, err)
	if n := strings.Count(string(log), "leading=false"); n > 0 {
		t.Errorf("the lease was lost %d times", n)
	}
}

// autoscaler returns a GPUAutoscaler of a Deployment of its name, with no stabilisation.
func autoscaler(namespace, name string, actuation v1alpha1.Actuation, signal v1alpha1.Signal) *v1alpha1.GPUAutoscaler {
	one, zero := int32(1), int32(0)
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &one, MaxReplicas: 8, Actuation: actuation, Signals: []v1alpha1.Signal{signal},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &zero}},
		},
	}
}

// attack creates the GPUAutoscalers of the other tenant. A query makes them want one
// replica and three by turns. A few of them scale.
func attack(t *testing.T, s *stack.Stack) {
	t.Helper()
	for i := range noisy {
		name := fmt.Sprint("noisy-", i)
		d := stack.Deployment("noisy", name, 1, time.Second)
		d.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"}
		must(t, s.Client.Create(t.Context(), d))
		actuation := v1alpha1.ActuationAdvise
		if i%30 == 0 {
			actuation = v1alpha1.ActuationScale
		}
		must(t, s.Client.Create(t.Context(), autoscaler("noisy", name, actuation, v1alpha1.Signal{
			Query:  &v1alpha1.QuerySignal{PromQL: "1 + 2 * (time() % 10 >= bool 5)"},
			Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("1")},
		})))
	}
}

// react raises the load, and returns the time until the replicas change. It waits until
// they are as before.
func react(t *testing.T, s *stack.Stack, load *stack.Load) time.Duration {
	t.Helper()
	await := func(ok func(int32) bool) {
		eventually(t, func() error {
			n, err := s.Replicas(t.Context(), "quiet", "quiet")
			if err == nil && !ok(n) {
				err = fmt.Errorf("%d replicas", n)
			}
			return err
		})
	}
	await(func(n int32) bool { return n == 1 })
	time.Sleep(5 * time.Second) // the replica works off what waits
	began := time.Now()
	load.Set(1.2 * capacity)
	await(func(n int32) bool { return n > 1 })
	took := time.Since(began)
	load.Set(0.3 * capacity)
	return took.Round(10 * time.Millisecond)
}

func eventually(t *testing.T, ask func() error) {
	t.Helper()
	must(t, stack.Await(context.WithoutCancel(t.Context()), patience, ask))
}
