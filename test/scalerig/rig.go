// SPDX-License-Identifier: Apache-2.0

// Package scalerig is what the tests of scaling on a real control plane share: a stack with workloads whose load a test
// sets, GPUAutoscalers of them, and waits for their replicas. Each package of tests has a stack of its own.
package scalerig

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	// Namespace is that of the workloads.
	Namespace = "llm"
	// Capacity is what one replica serves at 100 % utilisation, in requests/s.
	Capacity = 10.0
	// Target is the utilisation of the GPUAutoscalers, in percent.
	Target = 60.0
	// Patience bounds every wait for something that should take seconds.
	Patience = 90 * time.Second
)

// Rig is a stack with workloads, and the PromQL backend of its controller.
type Rig struct {
	*stack.Stack
	Prometheus Prometheus

	offered map[string]*stack.Load
}

// Main starts a rig with workloads of these names, stores it, runs the tests, and ends the process. Each test has
// workloads of its own.
func Main(m *testing.M, workloads []string, store func(*Rig)) {
	stack.Main(m, func(m *testing.M) (int, error) {
		r := &Rig{offered: map[string]*stack.Load{}}
		if err := r.Prometheus.Start(); err != nil {
			return 1, err
		}
		defer r.Prometheus.stop()
		if err := r.start(workloads); err != nil {
			return 1, err
		}
		defer r.Close()
		store(r)
		return r.Run(m), nil
	})
}

func (r *Rig) start(workloads []string) error {
	cfg := stack.Config{
		Nodes: 4, HPASyncPeriod: time.Second, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		ControllerArgs: []string{"--prometheus-url", r.Prometheus.url(), "--node-health"},
	}
	for _, name := range workloads {
		load := &stack.Load{}
		r.offered[name] = load
		cfg.Workloads = append(cfg.Workloads, simnode.Workload{
			Name: name, Model: sim.Workload{Capacity: Capacity, Concurrency: 16, QueueLimit: 60},
			Offered: load.At,
		})
	}
	s, err := stack.Start(context.Background(), cfg)
	if err != nil {
		return err
	}
	r.Stack = s
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := s.Client.Create(context.Background(), ns); err != nil {
		s.Close()
		return err
	}
	return nil
}

// Offer sets a workload's load, as a multiple of what one replica serves.
func (r *Rig) Offer(name string, replicas float64) {
	r.offered[name].Set(replicas * Capacity)
}

// Need is how many replicas a load wants at the target.
func Need(replicas float64) int32 { return int32(math.Ceil(replicas*100/Target - 1e-9)) }

// Deploy creates a workload and waits until it serves.
func (r *Rig) Deploy(t *testing.T, name string, replicas int32, startup time.Duration) {
	t.Helper()
	r.DeployThat(t, stack.Deployment(Namespace, name, replicas, startup))
}

// DeployThat creates a Deployment and waits until it serves. The test's end deletes it.
func (r *Rig) DeployThat(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	name, replicas := d.Name, *d.Spec.Replicas
	if err := r.Client.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Client.Delete(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
	Eventually(t, func() error {
		if ready := r.Serving(t, name); ready != int(replicas) {
			return fmt.Errorf("%d of %d replicas of %s serve", ready, replicas, name)
		}
		return nil
	})
}

// Serving is how many pods of a workload are ready.
func (r *Rig) Serving(t *testing.T, name string) int {
	t.Helper()
	ready, err := r.ReadyPods(t.Context(), Namespace, client.MatchingLabels{"app": name})
	if err != nil {
		t.Fatal(err)
	}
	return len(ready)
}

// Spread waits until what piled up while the replicas started is worked off and
// the controller sees each of them carry its share, below the target.
func (r *Rig) Spread(t *testing.T, name string, replicas int) {
	t.Helper()
	Eventually(t, func() error {
		n := 0
		for _, u := range r.Utilizations(t, name) {
			if u > 10 && u < Target {
				n++
			}
		}
		if n != replicas {
			return fmt.Errorf("%d of %d replicas of %s carry their share", n, replicas, name)
		}
		return nil
	})
}

// Utilizations are those that the controller sees of the workload's GPUs.
func (r *Rig) Utilizations(t *testing.T, name string) (out []float64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var v view.View
	if err := json.Unmarshal([]byte(Get(ctx, t, r.ControllerURL+"/api/v1/view")), &v); err != nil {
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

// Autoscaler is a GPUAutoscaler of a workload: 60 % utilisation, 1 to 12 replicas, 5 s of stabilisation on the way
// down.
func Autoscaler(name string) *v1alpha1.GPUAutoscaler {
	one, window := int32(1), int32(5)
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &one, MaxReplicas: 12,
			Signals: []v1alpha1.Signal{{
				GPU:    &v1alpha1.GPUSignal{Metric: "Utilization"},
				Target: &v1alpha1.Target{Value: resource.MustParse("60")},
			}},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &window}},
		},
	}
}

// Autoscale creates an Autoscaler, with a change. The test's end deletes it.
func (r *Rig) Autoscale(t *testing.T, name string, change func(*v1alpha1.GPUAutoscaler)) *v1alpha1.GPUAutoscaler {
	t.Helper()
	a := Autoscaler(name)
	if change != nil {
		change(a)
	}
	if err := r.Client.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Client.Delete(context.Background(), a); err != nil {
			t.Error(err)
		}
	})
	return a
}

// Status is that of a GPUAutoscaler.
func (r *Rig) Status(t *testing.T, name string) v1alpha1.GPUAutoscalerStatus {
	t.Helper()
	var a v1alpha1.GPUAutoscaler
	if err := r.Client.Get(t.Context(), client.ObjectKey{Namespace: Namespace, Name: name}, &a); err != nil {
		t.Fatal(err)
	}
	return a.Status
}

// Eventually waits until ask returns nil, for Patience.
func Eventually(t *testing.T, ask func() error) {
	t.Helper()
	if err := stack.Eventually(t.Context(), Patience, ask); err != nil {
		t.Fatal(err)
	}
}

// Measured waits until the last decision is about n replicas with data.
func (r *Rig) Measured(t *testing.T, name string, n int32) {
	t.Helper()
	Eventually(t, func() error {
		if d := r.Status(t, name).LastDecision; d == nil || len(d.Inputs) == 0 || d.Inputs[0].Replicas != n {
			return fmt.Errorf("not all %d replicas of %s are measured: %+v", n, name, d)
		}
		return nil
	})
}

// WantReplicas waits until spec.replicas is as wanted.
func (r *Rig) WantReplicas(t *testing.T, name, what string, ok func(int32) bool) {
	t.Helper()
	Eventually(t, func() error {
		n, err := r.Replicas(t.Context(), Namespace, name)
		if err == nil && !ok(n) {
			err = fmt.Errorf("%s has %d replicas, want %s", name, n, what)
		}
		return err
	})
}

// Stays fails if spec.replicas falls below n within d.
func (r *Rig) Stays(t *testing.T, name string, n int32, d time.Duration) {
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
		if got, err := r.Replicas(t.Context(), Namespace, name); err != nil || got < n {
			t.Fatalf("%s fell from %d to %d replicas (%v)", name, n, got, err)
		}
	}
}
