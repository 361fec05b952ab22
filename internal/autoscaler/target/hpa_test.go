// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

var web = Target{Key: NewKey("apps", "Deployment", "ns", "web"), Kind: "Deployment", gvk: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}}

// modelOf returns the model of the HPA controller, which is compared with the real one in
// test/kube/podautoscaler, with a spec.
func modelOf(spec *autoscalingv2.HorizontalPodAutoscalerSpec) *peers.HPA {
	rules := func(r *autoscalingv2.HPAScalingRules) peers.Rules {
		out := peers.Rules{Tolerance: 0.1, Window: int(*r.StabilizationWindowSeconds)}
		if r.Tolerance != nil {
			out.Tolerance = r.Tolerance.AsApproximateFloat64()
		}
		for _, p := range r.Policies {
			out.Policies = append(out.Policies, peers.RatePolicy{Percent: p.Type == autoscalingv2.PercentScalingPolicy, Value: int(p.Value), Period: int(p.PeriodSeconds)})
		}
		return out
	}
	return &peers.HPA{
		Kind: peers.ExternalAverage, MilliTarget: spec.Metrics[0].External.Target.AverageValue.MilliValue(),
		Min: int(*spec.MinReplicas), Max: int(spec.MaxReplicas), Up: rules(spec.Behavior.ScaleUp), Down: rules(spec.Behavior.ScaleDown),
	}
}

// From every number of replicas, one sync sets exactly the decided one, also if status.replicas lags behind.
func TestHPASetsTheDecision(t *testing.T) {
	const most = 120
	f := func(h *peers.HPA, at *int, current, decided, status int) bool {
		*at++
		return h.Sync(*at, &peers.Reading{Spec: current, Status: status, Milli: int64(decided) * 1000, HasValue: true}) == decided
	}
	spec := specOf(&web, "web", Range{1, most})
	for current := 1; current <= most; current++ {
		h, at := modelOf(&spec), 0
		for decided := 1; decided <= most; decided++ {
			for _, status := range []int{current, 1, most, max(1, current-1)} {
				if !f(h, &at, current, decided, status) {
					t.Fatalf("from %d (status %d), not %d", current, status, decided)
				}
			}
		}
	}
	// The default tolerance swallows one more from ten on, and follows a status that lags.
	spec.Behavior.ScaleUp.Tolerance, spec.Behavior.ScaleDown.Tolerance = nil, nil
	at := 0
	if f(modelOf(&spec), &at, 9, 10, 9) == false || f(modelOf(&spec), &at, 10, 11, 10) || f(modelOf(&spec), &at, 20, 20, 19) {
		t.Error("the model has another tolerance than Kubernetes")
	}
}

// The bounds include the decision: beyond them the HPA controller reads no metric.
func TestRangeOf(t *testing.T) {
	f := func(low, high, decided, wantLow, wantHigh int32) {
		t.Helper()
		if got := RangeOf(&scale.Policy{Min: low, Max: high}, decided); got != (Range{wantLow, wantHigh}) {
			t.Errorf("[%d, %d] for %d: %+v", low, high, decided, got)
		}
	}
	f(2, 8, 5, 2, 8)
	f(4, 8, 2, 2, 8)   // a budget
	f(1, 5, 10, 1, 10) // a drain
	f(1, 8, 0, 1, 8)   // set to 0 by hand
	f(0, 8, 0, 0, 8)
	f(0, 0, 0, 0, 1)
}

func clusterOf(t *testing.T, calls interceptor.Funcs, objects ...client.Object) (*HPAs, client.Client) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), autoscalingv2.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithInterceptorFuncs(calls).Build()
	return NewScaler(c).HPAs(c), c
}

func ownerWeb() *v1alpha1.GPUAutoscaler {
	a := autoscalerOf("web")
	a.UID, a.Generation = "a1", 7
	return a
}

// give creates UIDs, as the API server does.
func give(uid types.UID) interceptor.Funcs {
	return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		o.SetUID(uid)
		return c.Create(ctx, o, opts...)
	}}
}

func get(t *testing.T, c client.Client) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "gpupilot-web"}, &h); err != nil {
		t.Fatal(err)
	}
	return &h
}

func TestHPAIsKept(t *testing.T) {
	s, c := clusterOf(t, give("h1"))
	a, x, within := ownerWeb(), &HPA{}, Range{1, 8}
	x.Follow(a, true)
	keep := func(what string) {
		t.Helper()
		if s.IsKept(t.Context(), a, &web, within, x) {
			t.Errorf("%s: it counts as kept", what)
		}
		if err := s.Keep(t.Context(), a, &web, within, x); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if !s.IsKept(t.Context(), a, &web, within, x) {
			t.Errorf("%s: it does not count as kept", what)
		}
		if h := get(t, c); h.Spec.MaxReplicas != within.High || len(h.Spec.Metrics) != 1 || len(h.OwnerReferences) != 1 || h.OwnerReferences[0].UID != "a1" {
			t.Errorf("%s: %+v", what, h)
		}
	}
	keep("none")
	within.High = 9
	keep("other bounds")
	h := get(t, c)
	h.Spec.MaxReplicas, h.Spec.Metrics = 30, append(h.Spec.Metrics, h.Spec.Metrics[0])
	if err := c.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	keep("edited by others")
	h = get(t, c)
	h.OwnerReferences = nil
	if err := c.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	keep("without its owner")
	h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Reason: "FailedGetExternalMetric", Message: "not served"}}
	h.ResourceVersion = ""
	if err := c.Update(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	keep("without a metric")
	if !strings.Contains(x.Problem, "not served") || !strings.Contains(x.Problem, "externalMetrics.enabled") {
		t.Errorf("the problem is %q", x.Problem)
	}
	if len(x.Owned()) != 1 || x.Status("web").UID != "h1" {
		t.Errorf("owned %v", x.Owned())
	}
}

// Somebody else's object is not changed, whatever it says of itself, unless it is what the controller would create.
func TestForeignHPA(t *testing.T) {
	f := func(what string, change func(h *autoscalingv2.HorizontalPodAutoscaler), ours bool) {
		t.Helper()
		a, x := ownerWeb(), &HPA{}
		x.Follow(a, true)
		h := &autoscalingv2.HorizontalPodAutoscaler{Spec: specOf(&web, "web", Range{1, 8})}
		h.Namespace, h.Name, h.UID, h.OwnerReferences = "ns", "gpupilot-web", "tenant", append(h.OwnerReferences, ownerOf(a))
		change(h)
		s, c := clusterOf(t, interceptor.Funcs{}, h)
		before := get(t, c)
		s.Find(t.Context(), a, x)
		if found := x.UID == "tenant"; found != ours {
			t.Errorf("%s: owned %t", what, found)
		}
		if err := s.Keep(t.Context(), a, &web, Range{1, 9}, x); errors.Is(err, ErrForeignHPA) == ours || !ours && get(t, c).ResourceVersion != before.ResourceVersion {
			t.Errorf("%s: %v, %+v", what, err, get(t, c))
		}
	}
	f("as created by an earlier leader", func(*autoscalingv2.HorizontalPodAutoscaler) {}, true)
	f("another owner", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.OwnerReferences[0].UID = "a0" }, false)
	f("no controller", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.OwnerReferences[0].Controller = nil }, false)
	f("another metric", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.Metrics[0].External.Metric.Name = "mine" }, false)
	f("another autoscaler's number", func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.Metrics[0].External.Metric.Selector.MatchLabels[AutoscalerLabel] = "big"
	}, false)
	f("a second metric", func(h *autoscalingv2.HorizontalPodAutoscaler) {
		h.Spec.Metrics = append(h.Spec.Metrics, h.Spec.Metrics[0])
	}, false)
	f("another target", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.ScaleTargetRef.Name = "db" }, false)
}

// An API server without the tolerance is refused before anything is created, and so is one that takes no 0.
func TestHPAThatCannotBeExact(t *testing.T) {
	f := func(what, want string, within Range, create func(h *autoscalingv2.HorizontalPodAutoscaler) error) {
		t.Helper()
		s, c := clusterOf(t, interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := create(o.(*autoscalingv2.HorizontalPodAutoscaler)); err != nil { //nolint:forcetypeassert // there are no others
				return err
			}
			return c.Create(ctx, o, opts...)
		}})
		a, x := ownerWeb(), &HPA{}
		if err := s.Keep(t.Context(), a, &web, within, x); err == nil || !strings.Contains(err.Error(), want) || x.UID != "" {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
		var list autoscalingv2.HorizontalPodAutoscalerList
		if err := c.List(t.Context(), &list); err != nil || len(list.Items) > 0 {
			t.Errorf("%s: %d were created, %v", what, len(list.Items), err)
		}
	}
	f("Kubernetes 1.34", "needs Kubernetes 1.37", Range{1, 8}, func(h *autoscalingv2.HorizontalPodAutoscaler) error {
		h.Spec.Behavior.ScaleUp.Tolerance, h.Spec.Behavior.ScaleDown.Tolerance = nil, nil
		return nil
	})
	f("a webhook", "a webhook", Range{1, 8}, func(h *autoscalingv2.HorizontalPodAutoscaler) error {
		h.Spec.MaxReplicas = 3
		return nil
	})
	f("no scale to zero", "HPAScaleToZero", Range{0, 8}, func(h *autoscalingv2.HorizontalPodAutoscaler) error {
		return apierrors.NewInvalid(h.GroupVersionKind().GroupKind(), h.Name, nil)
	})
	f("no right", "externalMetrics.enabled", Range{1, 8}, func(h *autoscalingv2.HorizontalPodAutoscaler) error {
		return apierrors.NewForbidden(schema.GroupResource{}, h.Name, nil)
	})
	a := autoscalerOf(strings.Repeat("x", 64))
	s, _ := clusterOf(t, interceptor.Funcs{})
	if err := s.Keep(t.Context(), a, &web, Range{1, 8}, &HPA{}); err == nil || !strings.Contains(err.Error(), "at most 63 characters") {
		t.Errorf("a long name: %v", err)
	}
}

// It is deleted when the HPA controller has seen that it is stopped.
func TestHPAIsStoppedBeforeItIsDeleted(t *testing.T) {
	s, c := clusterOf(t, give("h1"))
	a, x := ownerWeb(), &HPA{}
	x.Follow(a, true)
	if err := s.Keep(t.Context(), a, &web, Range{1, 8}, x); err != nil {
		t.Fatal(err)
	}
	remove := func(what string, gone bool) {
		t.Helper()
		waits, err := s.Remove(t.Context(), a, x, false)
		if err != nil || (waits == "") != gone || (x.UID == "") != gone {
			t.Errorf("%s: %q, %v", what, waits, err)
		}
	}
	says := func(message string) {
		t.Helper()
		h := get(t, c)
		h.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: corev1.ConditionFalse, Reason: "FailedGetExternalMetric", Message: message}}
		if err := c.Update(t.Context(), h); err != nil {
			t.Fatal(err)
		}
	}
	says("unable to get external metric ns/gpupilot_desired_replicas/x")
	remove("running", false)
	if h := get(t, c); stopMetric(&h.Spec) != "gpupilot-stopped-7" || *h.Spec.Behavior.ScaleDown.SelectPolicy != autoscalingv2.DisabledPolicySelect {
		t.Errorf("it is not stopped: %+v", h.Spec)
	}
	a.Generation = 8
	remove("stopped, not seen", false)
	says("unable to get external metric ns/gpupilot-stopped-70/nil: none")
	remove("of another stop", false)
	says("unable to get external metric ns/gpupilot-stopped-7/nil: none")
	remove("seen", true)
	if len(x.Owned()) != 1 {
		t.Error("what the cache still has counts as a rival")
	}
}

// Its own HorizontalPodAutoscaler is no rival, and every other one is.
func TestOwnHPAIsNoRival(t *testing.T) {
	c, a := NewRivals(), ownerWeb()
	h := &autoscalingv2.HorizontalPodAutoscaler{Spec: specOf(&web, "web", Range{1, 8})}
	h.Namespace, h.Name, h.UID, h.OwnerReferences = "ns", "gpupilot-web", "h1", append(h.OwnerReferences, ownerOf(a))
	c.SetHPA(h, nil, false)
	f := func(what string, want bool, own ...types.UID) {
		t.Helper()
		if r, ok := c.Of(a, web.Key, own...); ok != want {
			t.Errorf("%s: rival %v, %t", what, r, ok)
		}
	}
	f("its own", false, "h1")
	f("one that says so", true)
	forged := h.DeepCopy()
	forged.Name, forged.UID = "copy", "h2"
	c.SetHPA(forged, nil, false)
	f("a copy beside it", true, "h1")
	c.SetHPA(forged, nil, true)
	h.UID = "h3"
	c.SetHPA(h, nil, false)
	f("made again by others", true, "h1")
	if c.SetHPA(h, nil, true); len(c.uids) != 0 {
		t.Errorf("%d UIDs are left", len(c.uids))
	}
}
