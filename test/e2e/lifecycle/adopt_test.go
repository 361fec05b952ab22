// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	rivals "github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/test/stack"
)

// adoptedLoad wants 4 replicas, of the HorizontalPodAutoscaler and of the GPUAutoscaler.
const (
	adoptedLoad     = 2.2
	adoptedReplicas = 4
)

// adoptable creates a workload under a real HorizontalPodAutoscaler, and returns that as the API server has it.
func adoptable(t *testing.T, name string) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	rig.Offer(name, adoptedLoad)
	rig.Deploy(t, name, adoptedReplicas, time.Second)
	rig.Spread(t, name, adoptedReplicas)
	average, least := resource.MustParse("60"), int32(2)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"example.com/note": "of the team"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &least, MaxReplicas: 8,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
			}}},
		},
	}
	if err := rig.Client.Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range []client.Object{
			&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
			&v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
		} {
			if err := rig.Client.Delete(context.Background(), o); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	scalingHPA(t, hpa)
	return hpa
}

// scalingHPA waits until kube-controller-manager scales on a HorizontalPodAutoscaler that is as it was.
func scalingHPA(t *testing.T, was *autoscalingv2.HorizontalPodAutoscaler) {
	t.Helper()
	stack.Eventually(t, func() error {
		var h autoscalingv2.HorizontalPodAutoscaler
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(was), &h); err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(h.Spec, was.Spec) || !equality.Semantic.DeepEqual(h.Labels, was.Labels) || !equality.Semantic.DeepEqual(h.Annotations, was.Annotations) {
			return fmt.Errorf("the HPA is\n%+v %v %v, was\n%+v %v %v", h.Spec, h.Labels, h.Annotations, was.Spec, was.Labels, was.Annotations)
		}
		for _, c := range h.Status.Conditions {
			if c.Type == autoscalingv2.ScalingActive && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("the HPA does not scale: %+v", h.Status.Conditions)
	})
}

// scalingOurs checks that the GPUAutoscaler scales, and that there is no HorizontalPodAutoscaler.
func scalingOurs(t *testing.T, name string) {
	t.Helper()
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &h); !apierrors.IsNotFound(err) {
		t.Errorf("the HPA is there: %v", err)
	}
	var a v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil || a.Spec.Actuation != v1alpha1.ActuationScale {
		t.Errorf("%v: the actuation is %s", err, a.Spec.Actuation)
	}
}

// The commands of docs/migrate.md hand a workload over from a real HorizontalPodAutoscaler, and back. Its replicas do
// not change. Afterwards they follow the load, whoever scales.
func TestDocsHandOver(t *testing.T) {
	const name = "chat"
	page, err := os.ReadFile("../../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Hand over, and back\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := regexp.MustCompile(`(?m)^    gpupilot (adopt|release) .*$`).FindAllString(section, -1)
	if !ok || len(commands) != 4 {
		t.Fatalf("the page has the commands %q", commands)
	}
	hpa := adoptable(t, name)
	seen := rig.Record(t, name)
	k := stack.NewKiller(t, rig.REST)
	run := func(i int) string { return k.MustRun(t, strings.Fields(commands[i])[1:]...) }

	if out := run(0); !strings.Contains(out, "dry run, nothing was changed") || !strings.Contains(out, "metric: DCGM_FI_DEV_GPU_UTIL") {
		t.Errorf("%s", out)
	}
	scalingHPA(t, hpa)
	out := run(1)
	_, printed, _ := strings.Cut(section, "```\n")
	printed, _, _ = strings.Cut(printed, "```\n")
	for line := range strings.Lines(printed) {
		_, step, numbered := strings.Cut(line, ". ")
		if !strings.Contains(out, line) && (!numbered || !strings.HasPrefix(step, "wait ") && !strings.Contains(out, ". "+step)) { // what is there already is not waited for
			t.Errorf("the page has the line\n%s the command prints\n%s", line, out)
		}
	}
	scalingOurs(t, name)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v while it was handed over", v)
	}
	rig.Offer(name, 2.75) // 55 % of 5 replicas, as before of 4
	rig.WantReplicas(t, name, "5", func(n int32) bool { return n == 5 })
	rig.Spread(t, name, 5)

	if out := run(2); !strings.Contains(out, "dry run, nothing was changed") || !strings.Contains(out, "example.com/note: of the team") {
		t.Errorf("%s", out)
	}
	scalingOurs(t, name)
	run(3)
	scalingHPA(t, hpa)
	if v := seen.Values(); !slices.Equal(v, []int32{adoptedReplicas, 5}) {
		t.Errorf("replicas went %v while it was handed back", v)
	}
	rig.Offer(name, 4)
	rig.WantReplicas(t, name, "7", func(n int32) bool { return n >= 7 })
}

// gpupilot is killed by SIGKILL in every other request of adopt that changes something, and in each of release. The second
// run finishes or goes back. internal/terminal/adopt kills in each request, of a control plane that is not real.
func TestAdoptKilled(t *testing.T) {
	const name, object = "adopted", namespace + "/adopted"
	hpa := adoptable(t, name)
	seen, k := rig.Record(t, name), stack.NewKiller(t, rig.REST)
	back := func() { k.MustRun(t, "release", object, "--dry-run=false", "--delete"); scalingHPA(t, hpa) }
	for n := 1; ; n += 2 {
		out, err := k.Run(t, n, n%4 == 1, "adopt", "hpa", object, "--dry-run=false")
		if !errors.Is(err, stack.ErrKilled) {
			if err != nil || n < 4 {
				t.Fatalf("adopt in %d requests: %v\n%s", n, err, out)
			}
			break
		}
		t.Log("killed in", k.Killed())
		if exists := !apierrors.IsNotFound(rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &v1alpha1.GPUAutoscaler{})); exists && n == 3 {
			back() // from a stopped HPA
		}
		k.MustRun(t, "adopt", "hpa", object, "--dry-run=false")
		scalingOurs(t, name)
		back()
	}
	scalingOurs(t, name)
	for n := 1; ; n++ {
		out, err := k.Run(t, n, n%2 == 1, "release", object, "--dry-run=false")
		if !errors.Is(err, stack.ErrKilled) {
			if err != nil || n < 3 {
				t.Fatalf("release in %d requests: %v\n%s", n, err, out)
			}
			break
		}
		t.Log("killed in", k.Killed())
		if n == 2 {
			back()
		}
		k.MustRun(t, "adopt", "hpa", object, "--dry-run=false")
		scalingOurs(t, name)
	}
	scalingHPA(t, hpa)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v, want %d all the time", v, adoptedReplicas)
	}
}

// A ScaledObject is paused and stays. What KEDA's operator does about it is done here: KEDA 2.21 sets the condition
// Paused, then deletes its HorizontalPodAutoscaler, and makes it again.
func TestAdoptScaledObject(t *testing.T) {
	const name, object = "scaledobject", namespace + "/scaledobject"
	if err := rig.InstallKind(t.Context(), rivals.ScaledObject().GroupVersionKind()); err != nil {
		t.Fatal(err)
	}
	rig.Offer(name, adoptedLoad)
	rig.Deploy(t, name, adoptedReplicas, time.Second)
	rig.Spread(t, name, adoptedReplicas) // the HPA counts the requests that waited
	rig.Prometheus.SetBacklog(5 * adoptedReplicas)
	so := rivals.ScaledObject()
	so.SetNamespace(namespace)
	so.SetName(name)
	so.SetAnnotations(map[string]string{"example.com/note": "of the team"})
	so.Object["spec"] = map[string]any{
		"scaleTargetRef": map[string]any{"name": name}, "minReplicaCount": int64(1), "maxReplicaCount": int64(8),
		"triggers": []any{map[string]any{"type": "prometheus", "metadata": map[string]any{"query": "sum(backlog)", "threshold": "5"}}},
	}
	stack.Eventually(t, func() error { return rig.Client.Create(t.Context(), so) })
	was := so.DeepCopy()
	seen := rig.Record(t, name)
	t.Cleanup(actAsKEDA(t, name))
	t.Cleanup(func() {
		_ = rig.Client.Delete(context.Background(), &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		_ = rig.Client.Delete(context.Background(), so)
	})
	k := stack.NewKiller(t, rig.REST)
	k.MustRun(t, "adopt", "scaledobject", object, "--dry-run=false", "--timeout", "2m")
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, &h); !apierrors.IsNotFound(err) {
		t.Errorf("KEDA's HPA is there: %v", err)
	}
	scalingOurs(t, name)
	rig.Prometheus.SetBacklog(5 * (adoptedReplicas + 1))
	rig.WantReplicas(t, name, "5", func(n int32) bool { return n == adoptedReplicas+1 })

	// Whoever removes the annotation by hand stops the GPUAutoscaler.
	k.MustRun(t, "release", object, "--dry-run=false")
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(so), so); err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(so.Object["spec"], was.Object["spec"]) || !equality.Semantic.DeepEqual(so.GetAnnotations(), was.GetAnnotations()) {
			return fmt.Errorf("it is %v %v", so.Object["spec"], so.GetAnnotations())
		}
		return rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, &h)
	})
	if v := seen.Values(); !slices.Equal(v, []int32{adoptedReplicas, adoptedReplicas + 1}) {
		t.Errorf("replicas went %v", v)
	}
}

// actAsKEDA does for a ScaledObject what KEDA's operator does about pauses, until the result is called.
func actAsKEDA(t *testing.T, name string) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	hpa := func(so *unstructured.Unstructured) *autoscalingv2.HorizontalPodAutoscaler {
		average := resource.MustParse("60")
		return &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keda-hpa-" + name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: so.GetAPIVersion(), Kind: so.GetKind(), Name: name, UID: so.GetUID(), Controller: new(true),
			}}},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 8,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
				}}},
			},
		}
	}
	reconcile := func() {
		so := rivals.ScaledObject()
		if rig.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, so) != nil {
			return
		}
		paused := so.GetAnnotations()["autoscaling.keda.sh/paused"] == "true"
		status := map[bool]string{true: "True", false: "False"}[paused]
		so.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": status}}}
		if rig.Client.Update(ctx, so) != nil {
			return // a conflict: later
		}
		if paused {
			_ = rig.Client.Delete(ctx, hpa(so))
		} else {
			_ = rig.Client.Create(ctx, hpa(so))
		}
	}
	var done sync.WaitGroup
	done.Go(func() {
		t := time.NewTicker(500 * time.Millisecond)
		defer t.Stop()
		for ctx.Err() == nil {
			reconcile()
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
