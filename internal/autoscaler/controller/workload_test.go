// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// loaded is a rig with one serving pod at a utilisation.
func loaded(t *testing.T, utilization float64) (*rig, *workload) {
	t.Helper()
	a := autoscaler("web")
	r := newRig(t, deployment("web", 1), a)
	p := pod("web", "web-1", r.now.Add(-time.Hour), ready(r.now.Add(-time.Hour)))
	r.pods.Pods = append(r.pods.Pods, p)
	r.utilization(r.now.Add(-time.Second), utilization, p)
	return r, r.add(a)
}

func TestPassScales(t *testing.T) {
	r, w := loaded(t, 90)
	w.pass(r.now)
	if n := r.replicas("web"); n != 2 {
		t.Fatalf("%d replicas, want 2", n)
	}
	if want := []string{"Normal Demand"}; !slices.Equal(r.eventReasons(), want) {
		t.Fatalf("events %v, want %v", r.eventReasons(), want)
	}
	contains(t, r.events[0].Note, "from 1 to 2: Utilization: 1 serving × 90 % ÷ target 60 % = 1.5, so 2 replicas")
	v := r.View()
	if len(v.Workloads) != 1 || v.Workloads[0].Decision == nil || v.Workloads[0].Decision.Replicas != 2 || !v.Workloads[0].Ready {
		t.Errorf("the page shows %+v", v.Workloads)
	}
	if len(v.Recent) != 1 || len(v.Nodes) != 1 || *v.Nodes[0].GPUs[0].Utilization != 90 {
		t.Errorf("the page shows recent %+v, nodes %+v", v.Recent, v.Nodes)
	}

	// The pod that was asked for is on its way: nothing more, and no write.
	r.calls.SubResourceUpdate = func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		t.Error("wrote again")
		return nil
	}
	w.pass(r.now.Add(time.Second))
	if h, ok := r.History("ns", "web"); !ok || len(h.Points) != 2 || h.Points[1].Replicas != 2 {
		t.Errorf("history %+v", h)
	}
}

func TestPassFollowsALeaderOnly(t *testing.T) {
	r, w := loaded(t, 90)
	r.leading = false
	w.pass(r.now)
	if n := r.replicas("web"); n != 1 || len(r.events) != 0 {
		t.Errorf("a follower scaled to %d and said %v", n, r.eventReasons())
	}
	r.leading = true
	w.pass(r.now.Add(time.Second))
	if n := r.replicas("web"); n != 2 {
		t.Errorf("%d replicas when it leads, want 2", n)
	}
}

func TestPassAdvises(t *testing.T) {
	r, w := loaded(t, 90)
	w.object.Load().Spec.Actuation = v1alpha1.ActuationAdvise
	r.rivals.Set(target.Rival{Kind: "HorizontalPodAutoscaler", Namespace: "ns", Name: "h"}, target.NewKey("apps", "Deployment", "ns", "web"), false)
	w.pass(r.now)
	w.pass(r.now.Add(time.Second))
	if n := r.replicas("web"); n != 1 {
		t.Errorf("advice was taken: %d replicas", n)
	}
	if want := []string{"Normal Demand"}; !slices.Equal(r.eventReasons(), want) {
		t.Errorf("events %v, want %v", r.eventReasons(), want)
	}
	contains(t, r.events[0].Note, "would scale Deployment web from 1 to 2")
}

// The GPUAutoscaler was changed or deleted, but the watch has not reported it yet.
func TestPassDoesNotActOnAnOutdatedObject(t *testing.T) {
	f := func(what string, change func(*rig, *v1alpha1.GPUAutoscaler) error) {
		t.Helper()
		r, w := loaded(t, 90)
		if err := change(r, w.object.Load().DeepCopy()); err != nil {
			t.Fatal(err)
		}
		w.pass(r.now)
		if n := r.replicas("web"); n != 1 || slices.Contains(r.eventReasons(), "Normal Demand") {
			t.Errorf("%s: scaled to %d and said %v", what, n, r.eventReasons())
		}
	}
	f("deleted", func(r *rig, a *v1alpha1.GPUAutoscaler) error { return r.client.Delete(t.Context(), a) })
	f("being deleted", func(r *rig, a *v1alpha1.GPUAutoscaler) error {
		var is v1alpha1.GPUAutoscaler
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(a), &is); err != nil {
			return err
		}
		is.Finalizers = []string{"example.com/keeps-it"}
		return errors.Join(r.client.Update(t.Context(), &is), r.client.Delete(t.Context(), &is))
	})
	f("changed", func(r *rig, a *v1alpha1.GPUAutoscaler) error {
		var is v1alpha1.GPUAutoscaler
		if err := r.client.Get(t.Context(), client.ObjectKeyFromObject(a), &is); err != nil {
			return err
		}
		is.Generation++
		return r.client.Update(t.Context(), &is)
	})
	f("another of its name", func(r *rig, a *v1alpha1.GPUAutoscaler) error {
		if err := r.client.Delete(t.Context(), a); err != nil {
			return err
		}
		a.UID, a.ResourceVersion = "another", ""
		return r.client.Create(t.Context(), a)
	})
	f("the API server is away", func(r *rig, _ *v1alpha1.GPUAutoscaler) error {
		r.deps.Live = fake.NewClientBuilder().WithScheme(runtime.NewScheme()).Build() // knows no kinds
		return nil
	})
}

func conflict() error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "web", errors.New("changed"))
}

// Another client scales between the read and the write: the decision is made again with
// the new number of replicas.
func TestPassDecidesAgainAfterAConflict(t *testing.T) {
	r, w := loaded(t, 90)
	tries := 0
	r.calls.SubResourceUpdate = func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
		tries++
		if tries > 1 {
			return accept(ctx, c, sub, obj, opts...)
		}
		var d appsv1.Deployment
		if err := c.Get(ctx, client.ObjectKeyFromObject(obj), &d); err != nil {
			return err
		}
		*d.Spec.Replicas = 2
		if err := c.Update(ctx, &d); err != nil {
			return err
		}
		return conflict()
	}
	w.pass(r.now)
	if n := r.replicas("web"); n != 2 || tries != 1 || len(r.events) != 0 {
		t.Errorf("%d replicas after %d writes with events %v: what was wanted was there already", n, tries, r.eventReasons())
	}
}

func TestPassRetriesAfterAConflict(t *testing.T) {
	r, w := loaded(t, 90)
	tries := 0
	r.calls.SubResourceUpdate = func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
		if tries++; tries < 3 {
			return conflict()
		}
		return accept(ctx, c, sub, obj, opts...)
	}
	w.pass(r.now)
	if n := r.replicas("web"); n != 2 || tries != 3 {
		t.Errorf("%d replicas after %d writes, want 2 after 3", n, tries)
	}
}

func TestPassBacksOff(t *testing.T) {
	r, w := loaded(t, 90)
	tries := 0
	r.calls.SubResourceUpdate = func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
		tries++
		return errors.New("no connection")
	}
	for i := range 40 {
		w.pass(r.now.Add(time.Duration(i) * 100 * time.Millisecond)) // 4 s
	}
	if tries != 4 { // at 0, 0.5, 1.5 and 3.5 s
		t.Errorf("%d writes within 4 s, want 4", tries)
	}
	st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionAbleToScale)
	if c == nil || c.Status != "False" || c.Reason != reasonScaleFailed {
		t.Fatalf("condition %+v", c)
	}
	contains(t, c.Message, "no connection")
}

func TestPassRefuses(t *testing.T) {
	f := func(what, reason, says string, change func(*rig, *workload)) {
		t.Helper()
		r, w := loaded(t, 90)
		change(r, w)
		w.pass(r.now)
		w.pass(r.now.Add(time.Second))
		if n := r.replicas("web"); n != 1 {
			t.Errorf("%s: scaled to %d", what, n)
		}
		if want := []string{"Warning " + reason}; !slices.Equal(r.eventReasons(), want) {
			t.Fatalf("%s: events %v, want %v", what, r.eventReasons(), want)
		}
		contains(t, r.events[0].Note, says)
		st := statusOf(w.status.next, &v1alpha1.GPUAutoscalerStatus{})
		for _, kind := range []string{v1alpha1.ConditionAbleToScale, v1alpha1.ConditionReady} {
			c := meta.FindStatusCondition(st.Conditions, kind)
			if c == nil || c.Status != "False" || c.Reason != reason {
				t.Errorf("%s: condition %s is %+v", what, kind, c)
			}
		}
	}
	f("an HPA owns it", reasonOwned, "HorizontalPodAutoscaler h", func(r *rig, _ *workload) {
		r.rivals.Set(target.Rival{Kind: "HorizontalPodAutoscaler", Namespace: "ns", Name: "h"}, target.NewKey("apps", "Deployment", "ns", "web"), false)
	})
	f("no such target", reasonNoTarget, "Deployment ns/nobody", func(_ *rig, w *workload) {
		w.object.Load().Spec.ScaleTargetRef.Name = "nobody"
	})
	f("no such version", reasonNoTarget, "must be GROUP/VERSION", func(_ *rig, w *workload) {
		w.object.Load().Spec.ScaleTargetRef.APIVersion, w.object.Load().Spec.ScaleTargetRef.Kind = "", "Rollout"
	})
	f("min > max", reasonInvalid, "spec.minReplicas", func(_ *rig, w *workload) {
		n := int32(20)
		w.object.Load().Spec.MinReplicas = &n
	})
	f("no such metric", reasonInvalid, "spec.signals[0].gpu.metric", func(_ *rig, w *workload) {
		w.object.Load().Spec.Signals[0].GPU.Metric = "Nope"
	})
}

// A spec that became invalid holds: the last valid one does not go on.
func TestPassHoldsWhenTheSpecBecomesInvalid(t *testing.T) {
	r, w := loaded(t, 60)
	w.pass(r.now)
	a := w.object.Load().DeepCopy()
	a.Generation++
	a.Spec.MaxReplicas = 0
	w.object.Store(a)
	r.utilization(r.now, 100, r.pods.Pods...)
	w.pass(r.now.Add(time.Second))
	if n := r.replicas("web"); n != 1 {
		t.Errorf("%d replicas by a policy that is gone", n)
	}
	if w.plan.Load() != nil || !w.engine.state.Since.IsZero() || w.engine.state.Wants != nil {
		t.Error("the old plan or its window is still there")
	}
}

// Going down, the pods that are missed least are marked; marks of earlier
// victims that live on are taken off, and other people's are left.
func TestPassMarksVictims(t *testing.T) {
	a := autoscaler("web")
	old := pod("web", "web-1", time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
	priced := pod("web", "web-2", time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
	priced.Annotations = map[string]string{corev1.PodDeletionCost: "7"}
	former := pod("web", "web-3", time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
	former.Annotations = map[string]string{corev1.PodDeletionCost: victimCost}
	starting := pod("web", "web-4", time.Now().Add(-time.Hour)) // for too long to be waited for
	r := newRig(t, deployment("web", 4), a, old, priced, former, starting)
	r.pods.Pods = []*corev1.Pod{old, priced, former, starting}
	r.utilization(r.now.Add(-time.Second), 55, old, priced, former)
	w := r.add(a)
	w.pass(r.now)
	if n := r.replicas("web"); n != 3 {
		t.Fatalf("%d replicas, want 3", n)
	}
	want := map[string]string{"web-1": "", "web-2": "7", "web-3": "", "web-4": victimCost}
	for name, cost := range want {
		var p corev1.Pod
		if err := r.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &p); err != nil {
			t.Fatal(err)
		}
		if got := p.Annotations[corev1.PodDeletionCost]; got != cost {
			t.Errorf("%s costs %q, want %q", name, got, cost)
		}
	}
}

func TestBudgetCountsMIGInstances(t *testing.T) {
	a := autoscaler("web")
	eight := int32(8)
	a.Spec.Budget = &v1alpha1.Budget{MaxGPUs: &eight}
	d := deployment("web", 3)
	d.Spec.Template.Spec.Containers = []corev1.Container{requests("nvidia.com/mig-1g.10gb", "2")}
	r := newRig(t, d, a)
	since := r.now.Add(-time.Hour)
	for _, name := range []string{"web-1", "web-2", "web-3"} {
		r.pods.Pods = append(r.pods.Pods, pod("web", name, since, ready(since), containers(requests("nvidia.com/mig-1g.10gb", "2"))))
	}
	w := r.add(a)
	r.utilization(r.now, 95, r.pods.Pods...) // of 60 %: 5 replicas
	w.pass(r.now)
	if got := r.replicas("web"); got != 4 {
		t.Errorf("%d replicas of 2 MIG instances with a budget of 8, want 4", got)
	}
	if d := w.status.next.Decision; d.Rule != scale.RuleBudget {
		t.Errorf("decided by %s: %s", d.Rule, d.Sentence())
	}
}
