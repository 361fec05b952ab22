// SPDX-License-Identifier: Apache-2.0

package aspect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

func gated(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Labels: map[string]string{"app": "chat"}},
		Spec:       corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}},
	}
}

// gateRig is Gates on a fake API server whose informer delivers at once.
type gateRig struct {
	*Gates
	client  client.Client
	ctx     context.Context // of the bubble
	mu      sync.Mutex
	leading bool
	fails   error
	slow    time.Duration // of a write
	writes  []string      // names of pods, in order
	pods    map[string]*corev1.Pod
}

func newGateRig(t *testing.T, pods ...*corev1.Pod) *gateRig {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	r := &gateRig{leading: true, pods: map[string]*corev1.Pod{}}
	b := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&corev1.Pod{})
	for _, p := range pods {
		b = b.WithObjects(p)
	}
	r.client = b.WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, obj client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			r.mu.Lock()
			r.writes = append(r.writes, obj.GetNamespace()+"/"+obj.GetName())
			fails, slow := r.fails, r.slow
			r.mu.Unlock()
			time.Sleep(slow)
			if fails != nil {
				return fails
			}
			if err := c.SubResource(sub).Patch(ctx, obj, patch, opts...); err != nil {
				return err
			}
			r.see(obj.(*corev1.Pod).DeepCopy())
			return nil
		},
	}).Build()
	r.Gates = newGates(Deps{Client: r.client, Writes: fair.NewSlots(fair.ForWrites()), Leading: func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.leading
	}, Log: slog.New(slog.DiscardHandler)})
	for _, p := range pods {
		r.see(p)
	}
	return r
}

func (r *gateRig) see(pod *corev1.Pod) {
	r.mu.Lock()
	key := pod.Namespace + "/" + pod.Name
	old := r.pods[key]
	r.pods[key] = pod
	r.mu.Unlock()
	r.PodChanged(old, pod)
}

// take returns the names of the pods that were written since the last call. Later writes
// fail with an error.
func (r *gateRig) take(fails error) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.writes
	r.writes, r.fails = nil, fails
	return out
}

func (r *gateRig) gate(key string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := replica.Gate(r.pods[key])
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

// in runs f in a bubble while the Gates run.
func in(t *testing.T, pods []*corev1.Pod, f func(r *gateRig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newGateRig(t, pods...)
		ctx, cancel := context.WithCancel(t.Context())
		r.ctx = ctx
		var runs sync.WaitGroup
		runs.Go(func() { r.Run(ctx) })
		f(r)
		cancel()
		runs.Wait()
	})
}

// A pod that declares the gate is ready as soon as its containers are, whether a
// GPUAutoscaler scales it or not. Other pods are left alone.
func TestGatesOpenAtOnce(t *testing.T) {
	other := gated("llm", "other")
	other.Spec.ReadinessGates = nil
	held := gated("llm", "held")
	held.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.ReadinessGate, Status: corev1.ConditionFalse, Reason: "Maintenance"}}
	in(t, []*corev1.Pod{gated("llm", "chat"), other, held}, func(r *gateRig) {
		synctest.Wait()
		if got := r.gate("llm/chat"); got != "True InService" {
			t.Errorf("gate %q", got)
		}
		r.see(gated("llm", "later"))
		if err := r.client.Create(r.ctx, gated("llm", "later")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := r.gate("llm/later"); got != "True InService" {
			t.Errorf("gate of a later pod %q", got)
		}
		if got := r.gate("llm/held"); got != "False Maintenance" {
			t.Errorf("a gate that somebody else has closed is %q", got)
		}
		if r.gate("llm/other") != "" {
			t.Error("a pod without the gate has a condition")
		}
	})
}

// A pod that a GPUAutoscaler drains stays out of the endpoints for as long as it is
// claimed, over a change of leaders. Nobody's is back after half a minute.
func TestGatesOfDrainingPods(t *testing.T) {
	in(t, []*corev1.Pod{gated("llm", "chat")}, func(r *gateRig) {
		synctest.Wait()
		r.mu.Lock()
		pod := r.pods["llm/chat"]
		r.mu.Unlock()
		if err := r.write(r.ctx, pod.Namespace, pod.Name, pod.UID, false); err != nil {
			t.Fatal(err)
		}
		for range 120 {
			r.claim([]types.UID{pod.UID}, time.Now())
			time.Sleep(time.Second)
		}
		if got := r.gate("llm/chat"); got != "False Draining" {
			t.Fatalf("gate %q while it is claimed", got)
		}
		r.mu.Lock()
		r.leading = false
		r.mu.Unlock()
		time.Sleep(time.Hour)
		if got := r.gate("llm/chat"); got != "False Draining" {
			t.Errorf("gate %q, written by a replica that does not lead", got)
		}
		r.mu.Lock()
		r.leading = true
		r.mu.Unlock()
		time.Sleep(unclaimed - time.Second)
		if got := r.gate("llm/chat"); got != "False Draining" {
			t.Errorf("gate %q before the new leader can have decided", got)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got := r.gate("llm/chat"); got != "True InService" {
			t.Errorf("gate %q of a pod that nobody drains", got)
		}
	})
}

// A tenant with thousands of pods that declare the gate delays another tenant's pod by
// about one round of writes. Writes that fail are repeated, less and less often.
func TestGatesAreFair(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 2000 {
		pods = append(pods, gated("hostile", fmt.Sprintf("p%04d", i)))
	}
	pods = append(pods, gated("llm", "chat"))
	in(t, pods, func(r *gateRig) {
		synctest.Wait()
		at := -1
		for i, name := range r.take(nil) {
			if name == "llm/chat" {
				at = i
			}
		}
		if at < 0 || at > 2*workers {
			t.Errorf("the other tenant's pod is written as number %d", at)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := r.gate("hostile/p1999"); got != "True InService" {
			t.Errorf("gate %q", got)
		}
		r.take(errors.New("pods/status: forbidden"))
		r.see(gated("llm", "new"))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := len(r.take(nil)); n < 5 || n > 20 {
			t.Errorf("%d attempts in five minutes", n)
		}
	})
}

func TestDisruptions(t *testing.T) {
	var d Disruptions
	pods := []*corev1.Pod{gated("llm", "chat")}
	seen := func() scale.Observation {
		o := scale.Observation{Pods: []scale.Replica{{Name: "chat"}}}
		d.apply(&o, "llm", &replica.Units{Pods: pods})
		return o
	}
	if o := seen(); !o.DisruptionsLost {
		t.Error("budgets are known before they were listed")
	}
	d.SetListed()
	if o := seen(); o.DisruptionsLost || len(o.Pods[0].Disrupts) > 0 {
		t.Errorf("without budgets: %+v", o)
	}
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "one", Generation: 2},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "chat"}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, ObservedGeneration: 2},
	}
	d.Changed(b, false)
	if o := seen(); len(o.Pods[0].Disrupts) != 1 || o.Disruptions[0].Allowed != 1 {
		t.Errorf("%+v", o)
	}
	b.Generation = 3
	d.Changed(b, false)
	if o := seen(); o.Disruptions[0].Allowed != 0 {
		t.Error("a status of an earlier spec counts")
	}
	b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "bad"}}}
	b.Generation = 2
	d.Changed(b, false)
	if o := seen(); len(o.Pods[0].Disrupts) != 1 || o.Disruptions[0].Allowed != 0 {
		t.Errorf("a selector that cannot be read: %+v", o)
	}
	d.Changed(b, true)
	if o := seen(); len(o.Pods[0].Disrupts) != 0 {
		t.Errorf("deleted: %+v", o)
	}
	for i := range maxBudgets + 1 {
		b := b.DeepCopy()
		b.Name = fmt.Sprint(i)
		d.Changed(b, false)
	}
	if o := seen(); !o.DisruptionsLost {
		t.Error("too many budgets are evaluated")
	}
}

func TestDrainCondition(t *testing.T) {
	failure := ""
	f := func(want string, change func(*Pass)) {
		t.Helper()
		p := &Pass{
			Decision: &scale.Decision{}, Target: &target.Target{}, Units: replica.Units{Pods: []*corev1.Pod{gated("llm", "chat")}},
			Plan: &policy.Compiled{Sources: []policy.Source{{InFlight: []policy.Term{{}}}}},
		}
		change(p)
		if reason, message := drainReason(p, failure); reason != want || message == "" {
			t.Errorf("%s: %q, want %s", reason, message, want)
		}
	}
	f("NotDraining", func(*Pass) {})
	f("Draining", func(p *Pass) { p.Decision.Leaving = 1 })
	f("NoReadinessGate", func(p *Pass) { p.Units.Pods[0].Spec.ReadinessGates = nil })
	f("RequestsNotCounted", func(p *Pass) { p.Plan.Sources = nil })
	f("PodDisruptionBudget", func(p *Pass) {
		p.Decision.Steps = []scale.Step{{Rule: scale.RuleDisruption, Facts: facts.Disruption("one")}}
	})
	f("GracePeriodTooShort", func(p *Pass) {
		p.Target.Template.Pods = &corev1.PodSpec{Containers: []corev1.Container{{Name: "vllm", Args: []string{"--shutdown-timeout=120"}}}}
	})
	failure = "forbidden"
	f("ReadinessGateNotWritten", func(p *Pass) { p.Decision.Leaving = 1 })
}

// However many pods of one namespace wait for slow writes, the next pod of another is served at once.
func TestAFloodOfPodsDelaysNobodyElse(t *testing.T) {
	for _, greedy := range []int{1, 3} {
		var pods []*corev1.Pod
		for n := range greedy {
			for i := range 480 / greedy {
				pods = append(pods, gated(fmt.Sprintf("greedy-%d", n), fmt.Sprintf("pod-%d", i)))
			}
		}
		quiet := gated("quiet", "chat")
		synctest.Test(t, func(t *testing.T) {
			r := newGateRig(t, append(slices.Clone(pods), quiet)...)
			r.mu.Lock()
			r.slow = 100 * time.Millisecond
			r.mu.Unlock()
			r.forget(quiet.UID)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { r.Run(ctx); close(ended) }()
			time.Sleep(3 * time.Second)
			began := time.Now()
			r.PodChanged(nil, quiet)
			for r.gate("quiet/chat") == "" {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("%d greedy namespaces: the gate is open after %v, and a write takes 100 ms", greedy, took)
			}
			cancel()
			<-ended
		})
	}
}
