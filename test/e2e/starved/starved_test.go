// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package starved tests that scaling and the lease go first where the API server is slow, and where other tenants take
// what there is. What goes first is counted: how long it takes is judged with -bars only.
package starved

import (
	"context"
	"encoding/json"
	"flag"
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
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

var bars = flag.Bool("bars", false, "judge how much longer a workload waits for its replicas beside an attack, on a machine that does nothing else")

const (
	namespace = stack.WorkloadNamespace
	quiet     = "quiet" // the workload whose neighbours attack
	// each is the time that the slow API server takes for a write. It does one at a time, in the order of their arrival,
	// and does not notice that a client has gone.
	each = 200 * time.Millisecond
	// noisy is the number of GPUAutoscalers of the attacker. Each wants a new status every 5 s, so that all of them want
	// twelve times the writes that there are.
	noisy = 300
	// mostAhead is how many writes the API server may have to do before one of the lease or of the quiet workload: those
	// that the controller has under way, eight (fair.ForWrites) and a few of other kinds. mostPassed is how many it may
	// begin between a decision about the quiet workload and its write. Without precedence, noisy ones are before it.
	mostAhead, mostPassed = 20, noisy / 5
	// leastLeases is the share of the lease in all writes, at least.
	leastLeases = 1.0 / 20
	// mostSlower is how many times longer the quiet workload may wait beside an attack than alone, with -bars.
	mostSlower = 4.0
)

// rig is the stack that the tests of this package share. Its controller reaches the API server through api.
var (
	rig *stack.Stack
	api = &slowly{turn: make(chan struct{}, 1)}
)

func TestMain(m *testing.M) {
	cfg := stack.Config{
		Nodes: 2, NoController: true, ControllerArgs: []string{"--prometheus-rules"},
		ControllerKubeconfig: func(_ bool, kubeconfig string) (string, error) { return api.serve(kubeconfig) },
	}
	stack.Main(m, cfg, func(s *stack.Stack) error {
		rig = s
		if err := s.InstallKind(context.Background(), rules.PrometheusRule); err != nil {
			return err
		}
		return s.StartController(context.Background())
	})
}

// slowly forwards the controller's requests to the API server, and counts writes. While it is slow, it delays them.
type slowly struct {
	proxy *httputil.ReverseProxy
	turn  chan struct{} // of a write that is delayed

	mu      sync.Mutex
	slow    bool
	waiting int
	writes  []write
}

// write is a write that has arrived while the server is slow.
type write struct {
	of    string // lease, or quiet: the replicas of the quiet workload
	at    time.Time
	ahead int // writes that have arrived before, and are not done
}

// serve serves what a kubeconfig is for, as long as this program runs, and returns a kubeconfig for that.
func (s *slowly) serve(kubeconfig string) (string, error) {
	rc, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return "", err
	}
	rc.QPS = -1
	transport, err := rest.TransportFor(rc)
	if err != nil {
		return "", err
	}
	to, err := url.Parse(rc.Host)
	if err != nil {
		return "", err
	}
	s.proxy = httputil.NewSingleHostReverseProxy(to)
	s.proxy.Transport, s.proxy.FlushInterval = transport, -1
	s.proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	front := filepath.Join(filepath.Dir(kubeconfig), "slowly")
	return front, os.WriteFile(front, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": %q}}], "users": [{"name": "x", "user": {}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`, httptest.NewServer(s).URL), 0o600)
}

func (s *slowly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && s.arrives(r) {
		s.turn <- struct{}{} // the first to come is the first to go
		<-time.After(each)
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
		<-s.turn
	}
	s.proxy.ServeHTTP(w, r)
}

// arrives counts a write, and reports whether it is delayed.
func (s *slowly) arrives(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.slow {
		return false
	}
	x := write{at: time.Now(), ahead: s.waiting}
	switch {
	case strings.Contains(r.URL.Path, "/leases/"):
		x.of = "lease"
	case strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+"/deployments/"+quiet+"/scale"):
		x.of = quiet
	}
	s.waiting++
	s.writes = append(s.writes, x)
	return true
}

// setSlow makes it slow, or not, and forgets the writes.
func (s *slowly) setSlow(slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow, s.writes = slow, nil
}

// seen are the writes since it is slow.
func (s *slowly) seen() []write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// Hundreds of GPUAutoscalers of one namespace change their statuses and replicas all the time, and the API server does five
// writes per second. Few of them come before a renewal of the lease, and few before the replicas of another namespace.
func TestStarvedAPIServer(t *testing.T) {
	deployQuiet(t, v1alpha1.Signal{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: resource.MustParse("60")}})
	api.setSlow(true)
	t.Cleanup(func() { api.setSlow(false) })
	alone := []time.Duration{react(t), react(t)}
	attack(t)
	api.setSlow(true)
	stack.Eventually(t, func() error {
		if n := len(api.seen()); n < 20 {
			return fmt.Errorf("%d writes: nothing is attacked", n)
		}
		return nil
	})
	var beside []time.Duration
	for range 3 {
		beside = append(beside, react(t))
		if passed := passed(t); passed > mostPassed {
			t.Errorf("%d writes came between a decision and its write, want at most %d of the %d that wait", passed, mostPassed, noisy)
		}
	}
	n, most := map[string]int{}, map[string]int{}
	writes := api.seen()
	for _, x := range writes {
		n[x.of]++
		most[x.of] = max(most[x.of], x.ahead)
	}
	t.Logf("%d writes, %d of the lease with at most %d before it, %d of the workload with at most %d before it", len(writes), n["lease"], most["lease"], n[quiet], most[quiet])
	if max(most["lease"], most[quiet]) > mostAhead {
		t.Errorf("%v writes were before one of the lease and of the workload, want at most %d", most, mostAhead)
	}
	if share := float64(n["lease"]) / float64(len(writes)); share < leastLeases {
		t.Errorf("%.2f of the writes are of the lease, want %.2f at least", share, leastLeases)
	}
	judge(t, alone, beside)
}

// passed is how many writes came between the last decision that changed the quiet workload, and its write.
func passed(t *testing.T) (n int) {
	t.Helper()
	var page struct{ Decisions []view.Event } // of this workload alone: the view has the newest of all
	stack.Must(t, json.Unmarshal([]byte(stack.Get(t, rig.ControllerURL+"/api/v1/decisions?limit=200&q="+quiet)), &page))
	i := slices.IndexFunc(page.Decisions, func(e view.Event) bool {
		return e.Namespace == namespace && e.Name == quiet && e.Decision.Replicas > e.Decision.Current
	})
	if i < 0 {
		t.Fatalf("none of the last %d decisions raised the replicas of %s", len(page.Decisions), quiet)
	}
	decided := page.Decisions[i].Decision.Time
	for _, x := range api.seen() {
		if x.at.Before(decided) {
			continue
		}
		if x.of == quiet {
			return n
		}
		n++
	}
	t.Fatalf("no write follows the decision at %v", decided)
	return 0
}

// judge logs times to the replicas for a load, and compares them with -bars.
func judge(t *testing.T, alone, beside []time.Duration) {
	t.Helper()
	times := slices.Max(beside).Seconds() / slices.Max(alone).Seconds()
	t.Logf("scaled within %v alone, and within %v beside the attack: %.1f times", alone, beside, times)
	if *bars && times > mostSlower {
		t.Errorf("another namespace's workload was scaled after %.1f times as long, want at most %g times", times, mostSlower)
	}
}

// deployQuiet creates the quiet workload with one replica and a signal.
func deployQuiet(t *testing.T, signal v1alpha1.Signal) {
	t.Helper()
	rig.Offer(quiet, 0.3)
	rig.Deploy(t, quiet, 1, time.Second)
	a := autoscaler(namespace, quiet, v1alpha1.ActuationScale, signal)
	stack.Must(t, rig.Client.Create(t.Context(), a))
	t.Cleanup(func() { stack.Must(t, rig.Client.Delete(context.Background(), a)) })
	rig.Measured(t, quiet, 1)
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

// attack creates the GPUAutoscalers of the other tenant, until the test's end. A query makes them want one replica and
// three by turns. A few of them scale.
func attack(t *testing.T) {
	t.Helper()
	tenant(t, "noisy")
	for i := range noisy {
		name := fmt.Sprint("noisy-", i)
		d := stack.Deployment("noisy", name, 1, time.Second)
		d.Spec.Template.Spec.NodeSelector = map[string]string{"no": "node"}
		stack.Must(t, rig.Client.Create(t.Context(), d))
		actuation := v1alpha1.ActuationAdvise
		if i%30 == 0 {
			actuation = v1alpha1.ActuationScale
		}
		stack.Must(t, rig.Client.Create(t.Context(), autoscaler("noisy", name, actuation, v1alpha1.Signal{
			Query:  &v1alpha1.QuerySignal{PromQL: "1 + 2 * (time() % 10 >= bool 5)"},
			Target: &v1alpha1.Target{Type: v1alpha1.AverageValue, Value: resource.MustParse("1")},
		})))
	}
}

// tenant creates a namespace, and deletes it with all that is in it at the test's end.
func tenant(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	stack.Must(t, rig.Client.Create(t.Context(), ns))
	t.Cleanup(func() {
		stack.Must(t, rig.Client.DeleteAllOf(context.Background(), &v1alpha1.GPUAutoscaler{}, client.InNamespace(name)))
		stack.Must(t, rig.Client.Delete(context.Background(), ns))
	})
}

// react raises the load of the quiet workload, and returns the time until the replicas change. It waits until they are as
// before.
func react(t *testing.T) time.Duration {
	t.Helper()
	rig.WantReplicas(t, quiet, "1", func(n int32) bool { return n == 1 })
	began := time.Now()
	rig.Offer(quiet, 1.2)
	rig.WantReplicas(t, quiet, "more than 1", func(n int32) bool { return n > 1 })
	took := time.Since(began)
	rig.Offer(quiet, 0.3)
	return took.Round(10 * time.Millisecond)
}
