// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package e2e tests the chain end to end: simulated GPUs, real agents, a real
// control plane, the real controller.
package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "llm"
	// capacity is what one replica serves at 100 % utilisation, in requests a second.
	capacity = 10.0
	target   = 60.0
	// patience bounds every wait for something that should take seconds.
	patience = 90 * time.Second
)

// names are the workloads of the tests. Each test has its own.
var names = []string{
	"updown", "hpa", "agentdies", "restart", "advise", "podsmetric", "preset", "zero",
	"handover", "terminated", "killed", "noderemoved", "hung", "certificate", "promdown", "churn", "clock", "past", "forged", "objects", "objectvalue", "objectaverage", "hold", "rollout", "rolloutbeside", "drain",
	"chat", "adopted", "scaledobject",
}

// rig is the one stack that the tests of this package share.
var rig struct {
	*stack.Stack
	prometheus prometheus
	offered    map[string]*stack.Load
}

func TestMain(m *testing.M) { stack.Main(m, withStack) }

func withStack(m *testing.M) (int, error) {
	if err := rig.prometheus.start(); err != nil {
		return 1, err
	}
	defer rig.prometheus.stop()
	cfg := stack.Config{
		Nodes: 4, HPASyncPeriod: time.Second, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		ControllerArgs: []string{"--prometheus-url", rig.prometheus.url(), "--node-health"},
	}
	rig.offered = map[string]*stack.Load{}
	for _, name := range names {
		load := &stack.Load{}
		rig.offered[name] = load
		cfg.Workloads = append(cfg.Workloads, simnode.Workload{
			Name: name, Model: sim.Workload{Capacity: capacity, Concurrency: 16, QueueLimit: 60},
			Offered: load.At,
		})
	}
	s, err := stack.Start(context.Background(), cfg)
	if err != nil {
		return 1, err
	}
	defer s.Close()
	rig.Stack = s
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := s.Client.Create(context.Background(), ns); err != nil {
		return 1, err
	}
	return s.Run(m), nil
}

// offer sets a workload's load, as a multiple of what one replica serves.
func offer(name string, replicas float64) {
	rig.offered[name].Set(replicas * capacity)
}

// need is how many replicas a load wants at the target.
func need(replicas float64) int32 { return int32(math.Ceil(replicas*100/target - 1e-9)) }

// deploy creates a workload and waits until it serves.
func deploy(t *testing.T, name string, replicas int32, startup time.Duration) {
	t.Helper()
	deployThat(t, stack.Deployment(namespace, name, replicas, startup))
}

func deployThat(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	name, replicas := d.Name, *d.Spec.Replicas
	if err := rig.Client.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.Client.Delete(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
	eventually(t, func() error {
		if ready := serving(t, name); ready != int(replicas) {
			return fmt.Errorf("%d of %d replicas of %s serve", ready, replicas, name)
		}
		return nil
	})
}

func serving(t *testing.T, name string) int {
	t.Helper()
	ready, err := rig.ReadyPods(t.Context(), namespace, client.MatchingLabels{"app": name})
	if err != nil {
		t.Fatal(err)
	}
	return len(ready)
}

// spread waits until what piled up while the replicas started is worked off and
// the controller sees each of them carry its share, below the target.
func spread(t *testing.T, name string, replicas int) {
	t.Helper()
	eventually(t, func() error {
		n := 0
		for _, u := range utilizations(t, name) {
			if u > 10 && u < target {
				n++
			}
		}
		if n != replicas {
			return fmt.Errorf("%d of %d replicas of %s carry their share", n, replicas, name)
		}
		return nil
	})
}

// utilizations are those that the controller sees of the workload's GPUs.
func utilizations(t *testing.T, name string) (out []float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var v view.View
	if err := json.Unmarshal([]byte(get(ctx, t, rig.ControllerURL+"/api/v1/view")), &v); err != nil {
		t.Fatal(err)
	}
	for _, node := range v.Nodes {
		for _, g := range node.GPUs {
			if len(g.Owners) == 1 && strings.HasPrefix(g.Owners[0].Pod, name+"-") && g.Utilization != nil {
				out = append(out, *g.Utilization)
			}
		}
	}
	return out
}

// autoscale creates a GPUAutoscaler of a workload: 60 % utilisation, 1 to 12
// replicas, 5 s of stabilisation on the way down.
func autoscale(t *testing.T, name string, change func(*v1alpha1.GPUAutoscaler)) *v1alpha1.GPUAutoscaler {
	t.Helper()
	a := newAutoscaler(t, name)
	if change != nil {
		change(a)
	}
	if err := rig.Client.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.Client.Delete(context.Background(), a); err != nil {
			t.Error(err)
		}
	})
	return a
}

func eventually(t *testing.T, ask func() error) {
	t.Helper()
	if err := stack.Eventually(t.Context(), patience, ask); err != nil {
		t.Fatal(err)
	}
}

// wantReplicas waits until spec.replicas is as wanted.
func wantReplicas(t *testing.T, name, what string, ok func(int32) bool) {
	t.Helper()
	eventually(t, func() error {
		n, err := rig.Replicas(t.Context(), namespace, name)
		if err == nil && !ok(n) {
			err = fmt.Errorf("%s has %d replicas, want %s", name, n, what)
		}
		return err
	})
}

// recorder notes every value that spec.replicas of a Deployment takes.
type recorder struct {
	mu    sync.Mutex
	seen  []int32
	first time.Time // of the first change
}

func record(t *testing.T, name string) *recorder {
	t.Helper()
	w, err := rig.Client.Watch(t.Context(), &appsv1.DeploymentList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	var done sync.WaitGroup
	done.Go(func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type != watch.Deleted {
				r.add(*d.Spec.Replicas)
			}
		}
	})
	t.Cleanup(func() { w.Stop(); done.Wait() })
	return r
}

func (r *recorder) add(n int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) == 0 || r.seen[len(r.seen)-1] != n {
		r.seen = append(r.seen, n)
		if len(r.seen) == 2 {
			r.first = time.Now()
		}
	}
}

// values are the replicas in the order in which they were asked for.
func (r *recorder) values() []int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]int32(nil), r.seen...)
}

// changed is when the replicas were changed for the first time since the record began.
func (r *recorder) changed() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// stays fails if spec.replicas falls below n within d.
func stays(t *testing.T, name string, n int32, d time.Duration) {
	t.Helper()
	deadline := time.After(d)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-deadline:
			return
		case <-tick.C:
		}
		if got, err := rig.Replicas(t.Context(), namespace, name); err != nil || got < n {
			t.Fatalf("%s fell from %d to %d replicas (%v)", name, n, got, err)
		}
	}
}
