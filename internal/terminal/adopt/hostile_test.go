// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// change edits an object, as others may.
func (c *cluster) change(key string, f func(u *unstructured.Unstructured)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.objects[key].DeepCopy()
	before := text(u.Object["spec"])
	f(u)
	if text(u.Object["spec"]) != before {
		u.SetGeneration(u.GetGeneration() + 1)
	}
	c.bump(u)
	c.objects[key] = u
}

func setNested(u *unstructured.Unstructured, value any, path ...string) {
	if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
		panic(err)
	}
}

// A tenant writes the record. Whoever releases has more rights, and creates nothing but what the tenant's own
// GPUAutoscaler could scale.
func TestHostileRecord(t *testing.T) {
	target := `"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}`
	f := func(want, record string) {
		t.Helper()
		inCluster(t, 1, kindHPA, func(t *testing.T, c *cluster) {
			if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			c.change("gpuautoscalers/chat", func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{recordAnnotation: record}) })
			out, err := c.attempt(t, 0, false, releases())
			if err == nil || !strings.Contains(err.Error(), want) || len(c.changes()) > 0 {
				t.Errorf("%s: %v, %q, want %q\n%s", record, err, c.changes(), want, out)
			}
			wantAdopted(t, c, kindHPA)
		})
	}
	f("scales Deployment payments", `{"kind": "HorizontalPodAutoscaler", "saved": {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "payments"}}}}`)
	f("scales StatefulSet chat", `{"kind": "HorizontalPodAutoscaler", "saved": {"spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "chat"}}}}`)
	f("scales Deployment chat", `{"kind": "HorizontalPodAutoscaler", "saved": {"spec": {"scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Deployment", "name": "chat"}}}}`)
	f(`kind "ClusterRoleBinding"`, `{"kind": "ClusterRoleBinding", "saved": {"spec": {`+target+`}}}`)
	f(`unknown field "namespace"`, `{"kind": "HorizontalPodAutoscaler", "namespace": "kube-system", "saved": {"spec": {`+target+`}}}`)
	f(`unknown field "name"`, `{"kind": "HorizontalPodAutoscaler", "name": "../../other", "saved": {"spec": {`+target+`}}}`)
	f(`unknown field "ownerReferences"`, `{"kind": "HorizontalPodAutoscaler", "saved": {"ownerReferences": [], "spec": {`+target+`}}}`)
	f("no copy of the HorizontalPodAutoscaler", `{"kind": "HorizontalPodAutoscaler"}`)
	f("several values", `{"kind": "ScaledObject"} {}`)
	f("a ScaledObject is not saved", `{"kind": "ScaledObject", "saved": {"spec": {`+target+`}}}`)
	f("no longer exists", `{"kind": "ScaledObject"}`)
	f("is not used", `not JSON`)
}

// A record is refused, or makes an object of the same name and namespace with the same target.
func FuzzRecord(f *testing.F) {
	f.Add(`{"kind": "HorizontalPodAutoscaler", "saved": {"labels": {"a": "b"}, "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "maxReplicas": 3}}}`)
	f.Add(`{"kind": "ScaledObject"}`)
	f.Add(`{"kind": "HorizontalPodAutoscaler", "saved": {"spec": {"scaleTargetRef": 7}}}`)
	f.Fuzz(func(t *testing.T, value string) {
		a := &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: "llm", Name: "chat", Annotations: map[string]string{recordAnnotation: value}}}
		a.Spec.ScaleTargetRef = v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "chat"}
		r, err := readRecord(a)
		if err != nil || r.Saved == nil {
			return
		}
		u := r.Saved.object(a.Namespace, a.Name)
		b, err := json.Marshal(u)
		if err != nil {
			t.Fatal(err)
		}
		var made struct {
			APIVersion, Kind string
			Metadata         map[string]any
			Spec             struct {
				ScaleTargetRef v1alpha1.CrossVersionObjectReference
			}
		}
		if err := json.Unmarshal(b, &made); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		if made.APIVersion != "autoscaling/v2" || made.Kind != kindHPA || made.Metadata["namespace"] != "llm" || made.Metadata["name"] != "chat" || !sameTarget(made.Spec.ScaleTargetRef, a.Spec.ScaleTargetRef) {
			t.Errorf("%s makes %s", value, b)
		}
		for k := range made.Metadata {
			if k != "namespace" && k != "name" && k != "labels" && k != "annotations" {
				t.Errorf("%s sets metadata.%s", value, k)
			}
		}
	})
}

// What adopt refuses. Nothing is changed.
func TestRefuses(t *testing.T) {
	f := func(what, kind, want string, change func(c *cluster)) {
		t.Helper()
		inCluster(t, 2, kind, func(t *testing.T, c *cluster) {
			change(c)
			out, err := c.attempt(t, 0, false, adopts(kind))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q\n%s", what, err, want, out)
			}
			if len(c.changes()) > 0 {
				t.Errorf("%s: %q", what, c.changes())
			}
		})
	}
	old := func(kind string) string {
		return map[string]string{kindHPA: "horizontalpodautoscalers/chat", kindScaledObject: "scaledobjects/chat"}[kind]
	}
	edit := func(kind string, f func(u *unstructured.Unstructured)) func(*cluster) {
		return func(c *cluster) { c.change(old(kind), f) }
	}
	ours := func(spec string) func(*cluster) {
		return func(c *cluster) {
			c.set(func() {
				c.put("gpuautoscalers/chat", parse(`{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": {"namespace": "llm", "name": "chat"}, "spec": `+spec+`}`))
			})
		}
	}
	f("none", kindHPA, "HorizontalPodAutoscaler llm/chat not found", func(c *cluster) {
		c.mu.Lock()
		defer c.mu.Unlock()
		clear(c.objects)
		c.put("horizontalpodautoscalers/other", parse(strings.ReplaceAll(text(hpa("other").Object), `"name":"chat"`, `"name":"other"`)))
	})
	f("owned", kindHPA, "belongs to ScaledObject chat", edit(kindHPA, func(u *unstructured.Unstructured) {
		u.SetOwnerReferences([]metav1.OwnerReference{{Kind: kindScaledObject, Name: "chat", UID: "x"}})
	}))
	f("finalizer", kindHPA, "has the finalizer example.com/x", edit(kindHPA, func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/x"}) }))
	f("another HPA", kindHPA, "the HorizontalPodAutoscaler second scales the same target", func(c *cluster) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.put("horizontalpodautoscalers/second", hpa("second"))
	})
	f("paused", kindScaledObject, "is paused", edit(kindScaledObject, func(u *unstructured.Unstructured) { u.SetAnnotations(map[string]string{pausedAnnotation: "true"}) }))
	f("holds", kindScaledObject, "is paused", edit(kindScaledObject, func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{pausedReplicasAnnotation: "3"})
	}))
	const signals = `"signals": [{"gpu": {"metric": "Utilization"}}], "minReplicas": 1, "missingData": "Hold"`
	const target = `"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}`
	f("a GPUAutoscaler that scales", kindHPA, "exists, and scales", ours(`{`+target+`, "maxReplicas": 6, "actuation": "Scale", `+signals+`}`))
	f("a GPUAutoscaler of another", kindHPA, "scales Deployment other", ours(`{`+strings.Replace(target, "chat", "other", 1)+`, "maxReplicas": 6, "actuation": "Advise", `+signals+`}`))
	f("a GPUAutoscaler of a tenant's wishes", kindHPA, "spec.maxReplicas is 1000, not 6", ours(`{`+target+`, "maxReplicas": 1000, "actuation": "Advise", `+signals+`}`))
	f("a spec that cannot be read", kindHPA, "cannot be read", ours(`{"maxReplicas": "many"}`))
}

// --keep-spec takes what exists.
func TestKeepSpec(t *testing.T) {
	inCluster(t, 4, kindHPA, func(t *testing.T, c *cluster) {
		c.mu.Lock()
		c.put("gpuautoscalers/chat", parse(`{"apiVersion": "gpupilot.dev/v1alpha1", "kind": "GPUAutoscaler", "metadata": {"namespace": "llm", "name": "chat"}, "spec": {
			"scaleTargetRef": {"kind": "Deployment", "name": "chat"}, "maxReplicas": 9, "actuation": "Advise", "signals": [{"gpu": {"metric": "Utilization"}}]}}`))
		c.mu.Unlock()
		if out, err := c.attempt(t, 0, false, adopts(kindHPA, func(a *adoption) { a.keepSpec = true })); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		wantAdopted(t, c, kindHPA)
		if n, _, _ := unstructured.NestedFloat64(c.object("gpuautoscalers/chat").Object, "spec", "maxReplicas"); n != 9 {
			t.Errorf("maxReplicas became %v", n)
		}
		// The HPA would remove what is above its maximum of 6.
		c.set(func() { c.replicas = 8 })
		time.Sleep(10 * time.Second) // simulated
		out, err := c.attempt(t, 0, false, releases())
		if err == nil || !strings.Contains(err.Error(), "there are 8 replicas, and the maximum of the HorizontalPodAutoscaler chat is 6: it would remove 2 at once") || len(c.changes()) > 0 {
			t.Errorf("%v, %q\n%s", err, c.changes(), out)
		}
		wantAdopted(t, c, kindHPA)
		// They rise while it is handed back.
		c.set(func() { c.replicas = 6 })
		time.Sleep(10 * time.Second) // simulated
		out, err = c.attempt(t, 0, false, func(ctx context.Context, o objects, r *runner) error {
			x := &release{objects: o}
			if err := firstStep(ctx, x); err != nil {
				return err
			}
			c.set(func() { c.replicas = 7 })
			time.Sleep(10 * time.Second) // simulated
			return x.command(ctx, r, false)
		})
		if err == nil || !strings.Contains(err.Error(), "there are 7 replicas") {
			t.Errorf("%v\n%s", err, out)
		}
		wantAdopted(t, c, kindHPA)
		c.set(func() { c.replicas = 6 })
		time.Sleep(10 * time.Second) // simulated
		if out, err := c.attempt(t, 0, false, releases()); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		wantReleased(t, c, kindHPA)
	})
}

// firstStep takes the first step of a release, again if the controller writes meanwhile.
func firstStep(ctx context.Context, r *release) error {
	for {
		steps, err := r.plan(ctx)
		if err == nil {
			err = steps[0].do(ctx)
		}
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

// What goes back scales as before, also for a run after the one that was killed.
func TestReleaseGoesBackToAnOwnedHPA(t *testing.T) {
	inCluster(t, 5, kindHPA, func(t *testing.T, c *cluster) {
		if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c.change("gpuautoscalers/chat", func(u *unstructured.Unstructured) { setNested(u, "HPA", "spec", "actuation") })
		time.Sleep(10 * time.Second) // simulated
		if out, err := c.attempt(t, 0, false, func(ctx context.Context, o objects, _ *runner) error {
			return firstStep(ctx, &release{objects: o})
		}); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c.set(func() { c.replicas = 70 })
		time.Sleep(10 * time.Second) // simulated
		out, err := c.attempt(t, 0, false, releases())
		if err == nil || !strings.Contains(err.Error(), "there are 70 replicas") || !strings.Contains(out, "set actuation: HPA again") {
			t.Errorf("%v\n%s", err, out)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if got, _, _ := unstructured.NestedString(c.objects["gpuautoscalers/chat"].Object, "spec", "actuation"); got != "HPA" {
			t.Errorf("actuation %s, want HPA", got)
		}
	})
}

// KEDA's webhook refuses changes of a ScaledObject whose target another HorizontalPodAutoscaler scales, and
// believes in a deleted one for a moment.
func TestReleaseFromAnOwnedHPAToKEDA(t *testing.T) {
	inCluster(t, 5, kindScaledObject, func(t *testing.T, c *cluster) {
		if out, err := c.attempt(t, 0, false, adopts(kindScaledObject)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c.set(func() {
			c.refuses = func(method, path string, _ bool) error {
				if method == http.MethodPatch && path == "scaledobjects/chat" && time.Since(c.ownedHPA) < 5*time.Second {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "scaledobjects"}, "chat", errors.New("the workload 'chat' of type 'apps/v1.Deployment' is already managed by the hpa 'gpupilot-chat'"))
				}
				return nil
			}
		})
		c.change("gpuautoscalers/chat", func(u *unstructured.Unstructured) { setNested(u, "HPA", "spec", "actuation") })
		time.Sleep(10 * time.Second) // simulated
		if out, err := c.attempt(t, 0, false, releases()); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		wantReleased(t, c, kindScaledObject)
	})
}

// A workload that the GPUAutoscaler has scaled to zero would stay there.
func TestReleaseAtZero(t *testing.T) {
	inCluster(t, 5, kindHPA, func(t *testing.T, c *cluster) {
		if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c.change("gpuautoscalers/chat", func(u *unstructured.Unstructured) { setNested(u, int64(0), "spec", "minReplicas") })
		c.set(func() { c.replicas = 0 })
		time.Sleep(10 * time.Second) // simulated
		out, err := c.attempt(t, 0, false, releases())
		if err == nil || !strings.Contains(err.Error(), "gpupilot hold llm/chat --min-replicas 1") || len(c.changes()) > 0 {
			t.Errorf("%v, %q\n%s", err, c.changes(), out)
		}
		wantAdopted(t, c, kindHPA)
	})
}

// Without a controller nobody confirms. --force is for that.
func TestReleaseWithoutController(t *testing.T) {
	for _, kind := range kinds {
		inCluster(t, 6, kind, func(t *testing.T, c *cluster) {
			if out, err := c.attempt(t, 0, false, adopts(kind)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			c.mu.Lock()
			c.controllerDead = true
			c.mu.Unlock()
			if out, err := c.attempt(t, 0, false, releases()); err == nil || !strings.Contains(err.Error(), "--force") {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := c.attempt(t, 0, false, releases(func(r *release) { r.force = true })); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantReleased(t, c, kind)
		})
	}
}

// Others change the objects between two runs.
func TestObjectsOfOthers(t *testing.T) {
	kill := func(t *testing.T, c *cluster, call string) {
		t.Helper()
		c.set(func() { c.killOn = call })
		if out, err := c.attempt(t, 0, true, adopts(kindHPA)); err == nil {
			t.Fatalf("no call %s\n%s", call, out)
		}
		c.set(func() { c.killOn = "" })
	}
	t.Run("a GitOps tool applies the spec of a stopped one again", func(t *testing.T) {
		inCluster(t, 8, kindHPA, func(t *testing.T, c *cluster) {
			kill(t, c, "PUT horizontalpodautoscalers/chat")
			c.change("horizontalpodautoscalers/chat", func(u *unstructured.Unstructured) { u.Object["spec"] = hpa("chat").Object["spec"] })
			if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantAdopted(t, c, kindHPA)
			if out, err := c.attempt(t, 0, false, releases()); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantReleased(t, c, kindHPA)
		})
	})
	t.Run("somebody deletes the GPUAutoscaler of a stopped one", func(t *testing.T) {
		inCluster(t, 9, kindHPA, func(t *testing.T, c *cluster) {
			kill(t, c, "PUT horizontalpodautoscalers/chat")
			c.mu.Lock()
			delete(c.objects, "gpuautoscalers/chat")
			c.mu.Unlock()
			if out, err := c.attempt(t, 0, false, releases()); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantReleased(t, c, kindHPA)
		})
	})
	t.Run("somebody deletes the GPUAutoscaler of a paused one", func(t *testing.T) {
		inCluster(t, 9, kindScaledObject, func(t *testing.T, c *cluster) {
			if out, err := c.attempt(t, 0, false, adopts(kindScaledObject)); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			c.mu.Lock()
			delete(c.objects, "gpuautoscalers/chat")
			c.mu.Unlock()
			if out, err := c.attempt(t, 0, false, releases()); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantReleased(t, c, kindScaledObject)
		})
	})
	t.Run("the HPA changes while it is waited for", func(t *testing.T) {
		inCluster(t, 10, kindHPA, func(t *testing.T, c *cluster) {
			kill(t, c, "POST gpuautoscalers")
			c.change("horizontalpodautoscalers/chat", func(u *unstructured.Unstructured) { setNested(u, int64(7), "spec", "maxReplicas") })
			if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err == nil || !strings.Contains(err.Error(), "spec.maxReplicas is 6, not 7") {
				t.Errorf("%v\n%s", err, out)
			}
			c.change("gpuautoscalers/chat", func(u *unstructured.Unstructured) { setNested(u, int64(7), "spec", "maxReplicas") })
			if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			wantAdopted(t, c, kindHPA)
			if out, err := c.attempt(t, 0, false, releases()); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if n, _, _ := unstructured.NestedFloat64(c.object("horizontalpodautoscalers/chat").Object, "spec", "maxReplicas"); n != 7 {
				t.Errorf("maxReplicas is %v, want what it was last", n)
			}
		})
	})
}

// A GitOps tool creates the HPA again while the GPUAutoscaler scales. That stops by itself; in the moment until it has
// seen it, both may write, so this runs outside of inCluster's rule.
func TestAdoptsWhatCameBack(t *testing.T) {
	inCluster(t, 11, kindHPA, func(t *testing.T, c *cluster) {
		if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		c.mu.Lock()
		c.put("horizontalpodautoscalers/chat", hpa("chat"))
		c.mu.Unlock()
		time.Sleep(10 * time.Second) // simulated
		c.mu.Lock()
		c.both = nil
		c.mu.Unlock()
		if out, err := c.attempt(t, 0, false, adopts(kindHPA)); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		wantAdopted(t, c, kindHPA)
	})
}

// Texts of objects reach a terminal without control characters.
func TestTerminal(t *testing.T) {
	var out strings.Builder
	(&runner{out: &out}).print("%s\n", "a\x1b]0;x\x07b\r\u009bc")
	if out.String() != "a?]0;x?b??c\n" {
		t.Errorf("%q", out.String())
	}
}
