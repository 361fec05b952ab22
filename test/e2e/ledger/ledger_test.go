// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package ledger tests what a hostile namespace with objects at the API server's limits
// costs the controller and other tenants, on a real control plane.
package ledger

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

var (
	perKind = flag.Int("objects", 8, "hostile objects of each kind that exist at a time")
	pods    = flag.Int("pods", 20, "hostile pods that exist at a time")
	length  = flag.Duration("churn", 5*time.Second, "how long the hostile objects change")
	seed    = flag.Uint64("seed", 0, "of the objects; 0: a random one")
	only    = flag.String("kind", "", "the only kind of objects")
	bars    = flag.Bool("bars", false, "judge how much longer another workload waits for its replicas, on a machine that does nothing else")
)

const (
	honest, evil = "honest", "evil" // namespaces
	// calm is how long the controller takes little CPU time once the lists are read. It gives memory back meanwhile.
	calm     = 6 * time.Second
	capacity = 10.0 // requests/s of a replica
	// maxMore bounds by how much the hostile namespace raises the controller's memory, however many its objects are
	// (SECURITY.md).
	maxMore = 80 << 20
	// mostSlower is how many times longer the honest workload may wait for its replicas than alone, with -bars.
	mostSlower = 4.0
)

var (
	rig  *stack.Stack
	load stack.Load
)

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{
		Nodes: 2, NoController: true, ControllerArgs: []string{"--prometheus-rules", "--window", "1m"},
		Workloads: []simnode.Workload{{Name: "server", Model: simnode.Model{Capacity: capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At}},
	}, func(s *stack.Stack) error { rig = s; return nil })
}

// A hostile namespace costs the controller at most maxMore, while its objects are created,
// while they change, and at a start; and others are scaled.
func TestHostileNamespace(t *testing.T) {
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	t.Logf("-seed %d", *seed)
	setUp(t)
	stack.Must(t, rig.StartController(t.Context()))
	alone := max(reaction(t), reaction(t)) // which starts what starts once
	started, steady := restart(t)

	g := &generator{rng: rand.New(rand.NewPCG(*seed, 0)), namespace: evil}
	watching := watchRSS(t)
	created, refused := flood(t, g)
	churn, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { change(churn, g) })
	var beside []time.Duration
	for began := time.Now(); len(beside) < 3 || time.Since(began) < *length; {
		beside = append(beside, reaction(t))
	}
	slices.Sort(beside)
	slowest := beside[len(beside)-1]
	stop()
	running.Wait()
	peak := watching()
	startedBeside, steadyBeside := restart(t)
	t.Logf("%d objects created, %d refused by the API server; without and beside them: RSS after a start %s and %s, most in a start %s and %s, most while they are created and change %s; reaction %v, and beside them %v in the median, %v at most (%d)",
		created, refused, mib(steady), mib(steadyBeside), mib(started), mib(startedBeside), mib(peak), alone, beside[len(beside)/2], slowest, len(beside))
	for name, x := range map[string]struct{ without, beside uint64 }{
		"while the objects are created and change": {started, peak}, "in a start": {started, startedBeside}, "after a start": {steady, steadyBeside},
	} {
		if x.beside > x.without+maxMore {
			t.Errorf("RSS %s: %s, want at most %s + %s", name, mib(x.beside), mib(x.without), mib(maxMore))
		}
	}
	if times := slowest.Seconds() / alone.Seconds(); *bars && times > mostSlower {
		t.Errorf("another tenant's replicas changed after %.1f times as long as alone, want at most %g", times, mostSlower)
	}
}

func mib(bytes uint64) string { return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20)) }

// setUp creates the namespaces, the CRDs and the honest workload.
func setUp(t *testing.T) {
	t.Helper()
	for _, x := range kinds {
		if x.Group == "monitoring.coreos.com" || x.Group == "keda.sh" {
			stack.Must(t, rig.InstallKind(t.Context(), x))
		}
	}
	for _, ns := range []string{honest, evil} {
		stack.Must(t, rig.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}))
		stack.Eventually(t, func() error {
			return rig.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "default"}, &corev1.ServiceAccount{})
		})
	}
	stack.Must(t, rig.Client.Create(t.Context(), stack.Deployment(honest, "server", 1, 0)))
	stack.Must(t, rig.Apply(t.Context(), []byte(`
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: server, namespace: `+honest+`}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: server}
  maxReplicas: 8
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
  signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]
`)))
}

// reaction returns the time from a higher load to the replicas for it, and goes back to
// one replica.
func reaction(t *testing.T) time.Duration {
	t.Helper()
	await := func(ok func(n int32) bool) {
		stack.Eventually(t, func() error {
			n, err := rig.Replicas(t.Context(), honest, "server")
			if err == nil && !ok(n) {
				err = fmt.Errorf("%d replicas", n)
			}
			return err
		})
	}
	load.Set(0.3 * capacity)
	await(func(n int32) bool { return n == 1 })
	stack.Eventually(t, func() error {
		if ready, err := rig.ReadyPods(t.Context(), honest, client.MatchingLabels{"app": "server"}); err != nil || len(ready) != 1 {
			return fmt.Errorf("%d replicas serve, %v", len(ready), err)
		}
		return nil
	})
	began := time.Now()
	load.Set(0.95 * capacity)
	await(func(n int32) bool { return n > 1 })
	took := time.Since(began)
	load.Set(0.3 * capacity)
	return took
}

// restart starts the controller again. It returns the most memory of the start, and the
// memory after it.
func restart(t *testing.T) (most, steady uint64) {
	t.Helper()
	rig.StopController()
	stack.Must(t, rig.StartController(t.Context()))
	watching := watchRSS(t)
	reaction(t)
	stack.Eventually(t, hasCalmedDown)
	most = max(watching(), statusOf(t, "VmHWM:"))
	sum, n := uint64(0), uint64(0)
	for range 20 {
		time.Sleep(100 * time.Millisecond)
		rss, err := agentrig.RSS(rig.ControllerPID())
		stack.Must(t, err)
		sum, n = sum+rss, n+1
	}
	return most, sum / n
}

// hasCalmedDown returns an error while the controller still reads lists, which take more of a core than everything else, or
// gives memory back.
func hasCalmedDown() error {
	pid := rig.ControllerPID()
	cpu, err := agentrig.CPU(pid)
	if err != nil {
		return err
	}
	rss, err := agentrig.RSS(pid)
	if err != nil {
		return err
	}
	time.Sleep(calm)
	cpuAfter, err := agentrig.CPU(pid)
	if err != nil {
		return err
	}
	rssAfter, err := agentrig.RSS(pid)
	if used := cpuAfter - cpu; err == nil && (used > calm/10 || rssAfter < rss-rss/20) {
		err = fmt.Errorf("in %v the controller used %v of CPU time, and its RSS went from %s to %s", calm, used, mib(rss), mib(rssAfter))
	}
	return err
}

// statusOf returns a size of the controller's process from /proc.
func statusOf(t *testing.T, name string) uint64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", rig.ControllerPID()))
	stack.Must(t, err)
	for line := range strings.Lines(string(text)) {
		var kb uint64
		if rest, ok := strings.CutPrefix(line, name); ok {
			if _, err := fmt.Sscan(rest, &kb); err == nil {
				return kb << 10
			}
		}
	}
	t.Fatalf("no %s in %s", name, text)
	return 0
}

// watchRSS watches the controller's memory. The result stops it and returns the most.
func watchRSS(t *testing.T) (stop func() uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	pid := rig.ControllerPID()
	var most uint64
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			if rss, err := agentrig.RSS(pid); err == nil {
				most = max(most, rss)
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() uint64 { cancel(); running.Wait(); return most }
}

// writers is how many requests write hostile objects at a time.
const writers = 4

// flood creates the hostile objects.
func flood(t *testing.T, g *generator) (created, refused int64) {
	t.Helper()
	var all []*unstructured.Unstructured
	for _, kind := range kinds {
		n := *perKind
		if kind.Kind == "Pod" {
			n = *pods
		}
		for i := range n {
			if *only == "" || *only == kind.Kind {
				all = append(all, g.object(kind, i))
			}
		}
	}
	g.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	var running sync.WaitGroup
	var next, ok, bad atomic.Int64
	for range writers {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(all)); i = next.Add(1) - 1 {
				if err := rig.Client.Create(t.Context(), all[i]); err != nil {
					bad.Add(1)
					t.Logf("%s is refused: %.300v", all[i].GetName(), err)
					continue
				}
				ok.Add(1)
			}
		})
	}
	running.Wait()
	return ok.Load(), bad.Load()
}

// change replaces random objects until ctx ends.
func change(ctx context.Context, g *generator) {
	for ctx.Err() == nil {
		kind := kinds[g.rng.IntN(len(kinds))]
		if *only != "" && *only != kind.Kind {
			continue
		}
		u := g.object(kind, g.rng.IntN(*perKind))
		if err := rig.Client.Delete(ctx, u, client.GracePeriodSeconds(0)); err != nil && !apierrors.IsNotFound(err) {
			continue
		}
		_ = rig.Client.Create(ctx, u) // some are refused
	}
}
