// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/simnode"
)

const (
	// WorkloadNamespace is that of the workloads.
	WorkloadNamespace = "llm"
	// Capacity is what one replica serves at 100 % utilisation, in requests/s.
	Capacity = 10.0
	// Target is the utilisation of the GPUAutoscalers, in percent.
	Target = 60.0
	// Window is the stabilisation window of an Autoscaler on the way down.
	Window = 2 * time.Second
)

// Model is that of a workload. What it cannot serve at once it rejects: with a queue, the utilisation would be 100 % for
// as long as new replicas work that off, and the peak of the replicas would depend on how long the machine takes for
// each step. So n replicas never look as if more were needed than the load needs.
func Model() simnode.Model { return simnode.Model{Capacity: Capacity, Concurrency: 16, QueueLimit: 1} }

// Offer sets a workload's load, as a multiple of what one replica serves. Pods of Deployments of its name serve it.
func (s *Stack) Offer(name string, replicas float64) {
	s.mu.Lock()
	load := s.loads[name]
	if load == nil {
		load = &Load{}
		s.loads[name] = load
	}
	s.mu.Unlock()
	load.Set(replicas * Capacity)
	s.Nodes.AddWorkload(simnode.Workload{Name: name, Model: Model(), Offered: load.At})
}

// Need is how many replicas a load wants at the target.
func Need(replicas float64) int32 { return int32(math.Ceil(replicas*100/Target - 1e-9)) }

// Deploy creates a workload and waits until it serves.
func (s *Stack) Deploy(t *testing.T, name string, replicas int32, startup time.Duration) {
	t.Helper()
	s.DeployThat(t, Deployment(WorkloadNamespace, name, replicas, startup))
}

// DeployThat creates a Deployment and waits until it serves. The test's end deletes it.
func (s *Stack) DeployThat(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	name, replicas := d.Name, *d.Spec.Replicas
	if err := s.Client.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Client.Delete(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
	Eventually(t, func() error {
		if ready := s.Serving(t, name); ready != int(replicas) {
			return fmt.Errorf("%d of %d replicas of %s serve", ready, replicas, name)
		}
		return nil
	})
}

// Serving is how many pods of a workload are ready.
func (s *Stack) Serving(t *testing.T, name string) int {
	t.Helper()
	ready, err := s.ReadyPods(t.Context(), WorkloadNamespace, client.MatchingLabels{"app": name})
	if err != nil {
		t.Fatal(err)
	}
	return len(ready)
}

// Spread waits until the controller sees each replica carry its share, below the target.
func (s *Stack) Spread(t *testing.T, name string, replicas int) {
	t.Helper()
	Eventually(t, func() error {
		n := 0
		for _, u := range s.Utilizations(t, name) {
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

// ofDeployment are the hash and the random end of the name of a Deployment's pod.
var ofDeployment = regexp.MustCompile(`^[a-z0-9]{6,12}-[a-z0-9]{5}$`)

// Utilizations are those that the controller sees of the workload's GPUs.
func (s *Stack) Utilizations(t *testing.T, name string) (out []float64) {
	t.Helper()
	isOurs := func(o view.Owner) bool { // the API server may be away
		rest, ok := strings.CutPrefix(o.Pod, name+"-")
		return ok && o.Namespace == WorkloadNamespace && ofDeployment.MatchString(rest)
	}
	var v view.View
	if err := json.Unmarshal([]byte(Get(t, s.ControllerURL+"/api/v1/view")), &v); err != nil {
		t.Fatal(err)
	}
	for _, node := range v.Nodes {
		for _, g := range node.GPUs {
			if len(g.Owners) == 1 && isOurs(g.Owners[0]) && g.Utilization != nil {
				out = append(out, *g.Utilization)
			}
		}
	}
	return out
}

// Autoscaler is a GPUAutoscaler of a workload: 60 % utilisation, 1 to 12 replicas, and Window.
func Autoscaler(name string) *v1alpha1.GPUAutoscaler {
	one, window := int32(1), int32(Window/time.Second)
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: WorkloadNamespace, Name: name},
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
func (s *Stack) Autoscale(t *testing.T, name string, change func(*v1alpha1.GPUAutoscaler)) *v1alpha1.GPUAutoscaler {
	t.Helper()
	a := Autoscaler(name)
	if change != nil {
		change(a)
	}
	if err := s.Client.Create(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Client.Delete(context.Background(), a); err != nil {
			t.Error(err)
		}
	})
	return a
}

// Status is that of a GPUAutoscaler.
func (s *Stack) Status(t *testing.T, name string) v1alpha1.GPUAutoscalerStatus {
	t.Helper()
	var a v1alpha1.GPUAutoscaler
	if err := s.Client.Get(t.Context(), client.ObjectKey{Namespace: WorkloadNamespace, Name: name}, &a); err != nil {
		t.Fatal(err)
	}
	return a.Status
}

// Measured waits until the last decision is about n replicas with data.
func (s *Stack) Measured(t *testing.T, name string, n int32) {
	t.Helper()
	Eventually(t, func() error {
		if d := s.Status(t, name).LastDecision; d == nil || len(d.Inputs) == 0 || d.Inputs[0].Replicas != n {
			return fmt.Errorf("not all %d replicas of %s are measured: %+v", n, name, d)
		}
		return nil
	})
}

// WantReplicas waits until spec.replicas is as wanted.
func (s *Stack) WantReplicas(t *testing.T, name, what string, ok func(int32) bool) {
	t.Helper()
	Eventually(t, func() error {
		n, err := s.Replicas(t.Context(), WorkloadNamespace, name)
		if err == nil && !ok(n) {
			err = fmt.Errorf("%s has %d replicas, want %s", name, n, what)
		}
		return err
	})
}

// Decisions is how many decisions the controller has made about a workload since it started.
func (s *Stack) Decisions(t *testing.T, name string) (n float64) {
	t.Helper()
	prefix := fmt.Sprintf("gpupilot_autoscaler_decisions_total{name=%q,namespace=%q,", name, WorkloadNamespace)
	meters, err := Meters(t.Context(), s.ControllerURL)
	if err != nil {
		t.Fatal(err)
	}
	for sample, v := range meters {
		if strings.HasPrefix(sample, prefix) {
			n += v
		}
	}
	return n
}

// Decides waits for more decisions about a workload, and for more than its Window: a decision that the window held back
// has been made by then.
func (s *Stack) Decides(t *testing.T, name string, more int) {
	t.Helper()
	held := time.Now().Add(Window + time.Second)
	from := s.Decisions(t, name)
	Eventually(t, func() error {
		n := s.Decisions(t, name)
		if n < from { // of a controller that has started since
			from = 0
		}
		if n < from+float64(more) || time.Now().Before(held) {
			return fmt.Errorf("%v decisions about %s, want %d", n-from, name, more)
		}
		return nil
	})
}

// Scraped waits until the controller has read each node's agent so many times more: what it reads leads to decisions.
func (s *Stack) Scraped(t *testing.T, more int) {
	t.Helper()
	const scrapes = "gpupilot_scrapes_total"
	from, each := Meter(t, s.ControllerURL, scrapes), float64(len(s.Nodes.NodeNames()))
	Eventually(t, func() error {
		if n := Meter(t, s.ControllerURL, scrapes) - from; n < each*float64(more) {
			return fmt.Errorf("%v scrapes, want %d of each agent", n, more)
		}
		return nil
	})
}

// Stays fails if spec.replicas falls below n before more decisions are made, see [Stack.Decides].
func (s *Stack) Stays(t *testing.T, name string, n int32, more int) {
	t.Helper()
	seen := s.Record(t, name)
	s.Decides(t, name, more)
	got, err := s.Replicas(t.Context(), WorkloadNamespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if v := append(seen.Values(), got); slices.Min(v) < n {
		t.Fatalf("%s fell below %d replicas: %v", name, n, v)
	}
}

// Serves waits until as many replicas of a workload serve as a load needs.
func (s *Stack) Serves(t *testing.T, name string, load float64) {
	t.Helper()
	Eventually(t, func() error {
		if n := s.Serving(t, name); n < int(Need(load)) {
			return fmt.Errorf("%d replicas serve, %d are needed", n, Need(load))
		}
		return nil
	})
}

// AtOnce is the behavior of a HorizontalPodAutoscaler that neither waits with a scale-down nor limits the pods of a scale-up,
// as the default does for 15 s.
func AtOnce() *autoscalingv2.HorizontalPodAutoscalerBehavior {
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Policies: []autoscalingv2.HPAScalingPolicy{{Type: autoscalingv2.PodsScalingPolicy, Value: 12, PeriodSeconds: 1}}},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: new(int32(0))},
	}
}
