// SPDX-License-Identifier: Apache-2.0

package target

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// autoscalerOf returns a GPUAutoscaler of the Deployment of its name.
func autoscalerOf(name string) *v1alpha1.GPUAutoscaler {
	a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}
	return a
}

func TestRivals(t *testing.T) {
	c := NewRivals()
	web := NewKey("apps", "Deployment", "ns", "web")
	a := autoscalerOf("web")
	a.CreationTimestamp = metav1.Time{Time: time.Unix(10, 0)}
	c.SetAutoscaler(a, false)
	is := func(what, want string) {
		t.Helper()
		got := ""
		if o, ok := c.Of(a, web); ok {
			got = o.String()
		}
		if got != want {
			t.Errorf("%s: the rival is %q, want %q", what, got, want)
		}
	}
	is("alone", "")

	hpa, keda := Rival{"HorizontalPodAutoscaler", "ns", "h"}, Rival{"ScaledObject", "ns", "k"}
	c.Set(hpa, NewKey("apps", "Deployment", "ns", "other"), false)
	is("an HPA of another", "")
	c.Set(hpa, web, false)
	is("an HPA", "HorizontalPodAutoscaler h")
	a.Spec.Actuation = v1alpha1.ActuationAdvise
	is("an HPA, and we only advise", "")
	a.Spec.Actuation = v1alpha1.ActuationScale
	c.Set(hpa, web, true)
	is("the HPA went", "")
	c.Set(keda, web, false)
	is("KEDA", "ScaledObject k")
	c.Set(keda, NewKey("apps", "Deployment", "ns", "other"), false)
	is("KEDA turned to another", "")

	b := autoscalerOf("older")
	b.Spec.ScaleTargetRef = a.Spec.ScaleTargetRef
	b.Spec.ScaleTargetRef.APIVersion = "" // the same
	b.CreationTimestamp = metav1.Time{Time: time.Unix(5, 0)}
	c.SetAutoscaler(b, false)
	is("an older GPUAutoscaler", "GPUAutoscaler older")
	if o, ok := c.Of(b, web); ok {
		t.Errorf("the older one gives way to %s", o)
	}
	b.Spec.Actuation = v1alpha1.ActuationAdvise
	is("an older one that only advises", "")
	b.Spec.Actuation = ""
	c.SetAutoscaler(b, true)
	is("the older one went", "")
	c.SetAutoscaler(a, true)
	if n := len(c.autoscalers) + len(c.ownTargets); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestKeyOf(t *testing.T) {
	want := NewKey("apps", "Deployment", "ns", "web")
	for _, version := range []string{"apps/v1", "apps/v1beta1", ""} {
		if got := KeyOf("ns", version, "Deployment", "web"); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
	if got := KeyOf("ns", "", "Rollout", "web"); got == want {
		t.Error("another kind is the same target")
	}
	if KeyOf("ns", "argoproj.io/v1alpha1", "Rollout", "web") != KeyOf("ns", "argoproj.io/v1alpha1", "rollout", "web") {
		t.Error("a rollout is another target than a Rollout")
	}
}

// A ScaledObject is no rival once KEDA has seen that it is paused with its replicas as they are.
func TestIsPaused(t *testing.T) {
	f := func(annotations map[string]string, status string, want bool) {
		t.Helper()
		u := ScaledObject()
		u.SetAnnotations(annotations)
		u.Object["status"] = map[string]any{"conditions": []any{7, map[string]any{"type": "Ready", "status": "True"}, map[string]any{"type": "Paused", "status": status}}}
		if got := IsPaused(u); got != want {
			t.Errorf("%v, Paused %s: %t", annotations, status, got)
		}
	}
	const paused, replicas = "autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"
	f(map[string]string{paused: "true"}, "True", true)
	f(map[string]string{paused: "yes"}, "True", true)
	f(map[string]string{paused: "true"}, "False", false)
	f(map[string]string{paused: "false"}, "True", false)
	f(map[string]string{paused: "true", replicas: "3"}, "True", false)
	f(map[string]string{replicas: "3"}, "True", false)
	f(map[string]string{"autoscaling.keda.sh/paused-scale-in": "true"}, "True", false)
	f(nil, "True", false)
	if IsPaused(ScaledObject()) {
		t.Error("one without a status is paused")
	}
}
