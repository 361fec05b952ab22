// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
)

// The whole controller runs: it scales in the same instant in which samples arrive,
// decides every tick in between, and ends when its context is done.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := autoscaler("web")
		a.Generation = 1
		r := newRig(t, deployment("web", 1), a)
		p := pod("web", "web-1", time.Now().Add(-time.Hour), ready(time.Now().Add(-time.Hour)))
		r.pods.Pods = []*corev1.Pod{p, pod("agent", "agent-1", time.Now())}
		handlers := map[string]toolscache.ResourceEventHandler{}
		r.watch = func(_ context.Context, obj client.Object, h toolscache.ResourceEventHandler) error {
			switch o := obj.(type) {
			case *appsv1.Deployment:
				h.OnAdd(deployment("web", 1), true)
			case *unstructured.Unstructured:
				if o.GetKind() == "GPUAutoscaler" {
					h.OnAdd(asStored(t, a), true)
					handlers["gpa"] = h
				}
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		isReady := false
		all.Go(func() {
			if err := r.Run(ctx, func() { isReady = true }); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if !isReady {
			t.Error("not ready though everything was listed")
		}
		time.Sleep(200 * time.Millisecond) // synctest's clock: the targets are listed anew at most every 50 ms
		synctest.Wait()

		before := time.Now()
		r.utilization(before, 90, p)
		r.Deliver("agent/ns/agent-1", before)
		synctest.Wait()
		if n := r.replicas("web"); n != 2 || time.Since(before) > 0 {
			t.Errorf("%d replicas %v after the sample arrived, want 2 at once", n, time.Since(before))
		}
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		if h, _ := r.History("ns", "web"); len(h.Points) < 5 {
			t.Errorf("%d points after 5 s of ticks", len(h.Points))
		}
		if v := r.View(); v.Targets[0].Node != "" || len(v.Workloads) != 1 {
			t.Errorf("view %+v", v)
		}

		handlers["gpa"].OnDelete(asStored(t, a))
		synctest.Wait()
		if _, ok := r.History("ns", "web"); ok || len(r.allWorkloads()) != 0 {
			t.Error("a deleted GPUAutoscaler goes on")
		}
		cancel()
		all.Wait()
	})
}

func TestScaledObjects(t *testing.T) {
	r := newRig(t)
	web := target.NewKey("apps", "Deployment", "ns", "web")
	a := autoscaler("web")
	r.rivals.SetAutoscaler(a, false)
	so := target.ScaledObject()
	so.SetNamespace("ns")
	so.SetName("keda")
	if err := unstructured.SetNestedStringMap(so.Object, map[string]string{"name": "web"}, "spec", "scaleTargetRef"); err != nil {
		t.Fatal(err)
	}
	r.scaledObjectChanged(so, false)
	if o, ok := r.rivals.Of(a, web); !ok || o.String() != "ScaledObject keda" {
		t.Errorf("the rival is %v", o)
	}
	so.SetAnnotations(map[string]string{"autoscaling.keda.sh/paused": "true"})
	r.scaledObjectChanged(so, false)
	if _, ok := r.rivals.Of(a, web); !ok {
		t.Error("KEDA has not seen yet that it is paused, and is no rival")
	}
	so.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": "True"}}}
	r.scaledObjectChanged(so, false)
	if o, ok := r.rivals.Of(a, web); ok {
		t.Errorf("a paused one is the rival %v", o)
	}
	so.SetAnnotations(nil)
	r.scaledObjectChanged(so, false)
	if _, ok := r.rivals.Of(a, web); !ok {
		t.Error("one that is no longer paused is no rival")
	}
	r.scaledObjectChanged(so, true)
	if o, ok := r.rivals.Of(a, web); ok {
		t.Errorf("the rival is still %v", o)
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
		if got := w.status.next; got.obstacle.reason != reasonOwned || got.Target == nil || got.Target.String() != "Deployment web" {
			t.Errorf("%v beside an HPA: %+v of %v", ref, got.obstacle, got.Target)
		}
	}
}
