// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

func TestRivals(t *testing.T) {
	c := newClaims()
	web := newClaim("apps", "Deployment", "ns", "web")
	a := autoscaler("web")
	a.CreationTimestamp = metav1.Time{Time: at(10)}
	c.setAutoscaler(a, false)
	is := func(what, want string) {
		t.Helper()
		got := ""
		if o, ok := c.findRival(a, web); ok {
			got = o.String()
		}
		if got != want {
			t.Errorf("%s: the rival is %q, want %q", what, got, want)
		}
	}
	is("alone", "")

	hpa, keda := owner{"HorizontalPodAutoscaler", "ns", "h"}, owner{"ScaledObject", "ns", "k"}
	c.setOther(hpa, newClaim("apps", "Deployment", "ns", "other"), false)
	is("an HPA of another", "")
	c.setOther(hpa, web, false)
	is("an HPA", "HorizontalPodAutoscaler h")
	a.Spec.Actuation = v1alpha1.ActuationAdvise
	is("an HPA, and we only advise", "")
	a.Spec.Actuation = v1alpha1.ActuationScale
	c.setOther(hpa, web, true)
	is("the HPA went", "")
	c.setOther(keda, web, false)
	is("KEDA", "ScaledObject k")
	c.setOther(keda, newClaim("apps", "Deployment", "ns", "other"), false)
	is("KEDA turned to another", "")

	b := autoscaler("older")
	b.Spec.ScaleTargetRef = a.Spec.ScaleTargetRef
	b.Spec.ScaleTargetRef.APIVersion = "" // the same
	b.CreationTimestamp = metav1.Time{Time: at(5)}
	c.setAutoscaler(b, false)
	is("an older GPUAutoscaler", "GPUAutoscaler older")
	if o, ok := c.findRival(b, web); ok {
		t.Errorf("the older one gives way to %s", o)
	}
	b.Spec.Actuation = v1alpha1.ActuationAdvise
	is("an older one that only advises", "")
	b.Spec.Actuation = ""
	c.setAutoscaler(b, true)
	is("the older one went", "")
	c.setAutoscaler(a, true)
	if n := len(c.ownClaims) + len(c.ownTargets); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestClaimOf(t *testing.T) {
	want := newClaim("apps", "Deployment", "ns", "web")
	for _, version := range []string{"apps/v1", "apps/v1beta1", ""} {
		if got := claimOf("ns", version, "Deployment", "web"); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
	if got := claimOf("ns", "", "Rollout", "web"); got == want {
		t.Error("another kind is the same claim")
	}
}

// REST mappers accept a kind in lower case. It names the same target, in a
// GPUAutoscaler, an HPA and a ScaledObject.
func TestKindsInLowerCase(t *testing.T) {
	for _, ref := range [][2]string{{"apps/v1", "deployment"}, {"", "deployment"}} {
		a := autoscaler("web")
		a.Spec.ScaleTargetRef.APIVersion, a.Spec.ScaleTargetRef.Kind = ref[0], ref[1]
		r := newRig(t, deployment("web", 1), a)
		w := r.add(a)
		h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}
		h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
		r.hpaChanged(h, false)
		w.pass(r.now)
		if got := w.status.next; got.obstacle.reason != reasonOwned || got.target == nil || got.target.String() != "Deployment web" {
			t.Errorf("%v beside an HPA: %+v of %v", ref, got.obstacle, got.target)
		}
	}
	if claimOf("ns", "argoproj.io/v1alpha1", "Rollout", "web") != claimOf("ns", "argoproj.io/v1alpha1", "rollout", "web") {
		t.Error("a rollout is another target than a Rollout")
	}
}
