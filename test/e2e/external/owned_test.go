// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package external

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/stack"
)

// byHPA is a GPUAutoscaler that wants as many replicas as b says.
func byHPA(name string) *v1alpha1.GPUAutoscaler {
	exact := &v1alpha1.ScalingRules{StabilizationWindowSeconds: new(int32(0)), Tolerance: new(resource.MustParse("0"))}
	return &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MaxReplicas:    30, Actuation: v1alpha1.ActuationHPA,
			Signals: []v1alpha1.Signal{{
				Query: &v1alpha1.QuerySignal{PromQL: "sum(queue_length)"}, Target: &v1alpha1.Target{Type: "AverageValue", Value: resource.MustParse("1")},
			}},
			Behavior: &v1alpha1.Behavior{ScaleUp: exact.DeepCopy(), ScaleDown: exact},
		},
	}
}

func owned(t *testing.T, name string) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	var h autoscalingv2.HorizontalPodAutoscaler
	return &h, rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &h)
}

func patch(t *testing.T, o client.Object, name, text string) {
	t.Helper()
	o.SetNamespace(namespace)
	o.SetName(name)
	if err := rig.Client.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(text))); err != nil {
		t.Fatal(err)
	}
}

// able waits until the condition AbleToScale has a reason, and its message contains a text.
func able(t *testing.T, name, reason, text string) {
	t.Helper()
	stack.Eventually(t, func() error { return isAble(t, name, reason, text) })
}

func isAble(t *testing.T, name, reason, text string) error {
	var a v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
		return err
	}
	if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAbleToScale); c == nil || c.Reason != reason || !strings.Contains(c.Message, text) {
		return fmt.Errorf("AbleToScale %+v, want %s with %q", c, reason, text)
	}
	return nil
}

// healthy checks that gpupilot doctor finds nothing about the scaling.
func healthy(t *testing.T) {
	t.Helper()
	api, err := remote.NewAPI(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	c := remote.Controller{Cluster: &remote.Cluster{}, Address: rig.ControllerURL}
	w := doctor.Where{API: api, Namespace: stack.Namespace, Now: time.Now, Controller: func(ctx context.Context, v *view.View) error {
		return c.Get(ctx, "api/v1/view", nil, v)
	}}
	checks, err := (&doctor.Selection{Only: []string{"scaling"}}).Select()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range doctor.Run(checks, w.Gather(t.Context(), false)) {
		if r.Status != doctor.Passed {
			t.Errorf("%s %s: %+v %s", r.Code, r.Status, r.Findings, r.Reason)
		}
	}
}

// recorder has every number of replicas of a Deployment, and who wrote it.
type recorder struct {
	mu      sync.Mutex
	numbers []int32
	writers map[string]bool
}

func record(t *testing.T, name string) *recorder {
	t.Helper()
	r := &recorder{writers: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	w, err := rig.Client.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for e := range w.ResultChan() {
			d, ok := e.Object.(*appsv1.Deployment)
			if !ok {
				continue
			}
			r.mu.Lock()
			if n := *d.Spec.Replicas; len(r.numbers) == 0 || r.numbers[len(r.numbers)-1] != n {
				r.numbers = append(r.numbers, n)
			}
			for _, f := range d.ManagedFields {
				if f.Subresource == "scale" {
					r.writers[f.Manager] = true
				}
			}
			r.mu.Unlock()
		}
	})
	t.Cleanup(func() { cancel(); w.Stop(); all.Wait() })
	return r
}

// take returns what was recorded, and forgets it but for the last number.
func (r *recorder) take() (numbers []int32, writers []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	numbers = slices.Clone(r.numbers)
	for w := range r.writers {
		writers = append(writers, w)
	}
	r.numbers, r.writers = r.numbers[len(r.numbers)-1:], map[string]bool{}
	return numbers, writers
}

// The replicas follow the decision exactly through the owned HorizontalPodAutoscaler: also by one at ten and more, where
// its own tolerance would swallow the step.
func TestOwnedHPA(t *testing.T) {
	queue.set("3")
	deploy(t, stack.Deployment(namespace, "web", 1, 0))
	seen := record(t, "web")
	rig.Create(t, byHPA("web"))
	want := []int32{3, 10, 11, 12, 21, 22, 20, 11, 10, 2, 12}
	for _, n := range want {
		queue.set(fmt.Sprint(n))
		rig.AwaitReplicas(t, namespace, "web", n)
	}
	stack.Eventually(t, func() error { // the watch is behind the reads
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if got := seen.numbers; len(got) <= len(want) {
			return fmt.Errorf("the replicas were %d", got)
		}
		return nil
	})
	numbers, writers := seen.take()
	if !slices.Equal(numbers, append([]int32{1}, want...)) {
		t.Errorf("the replicas were %d, want exactly %d", numbers, want)
	}
	if slices.ContainsFunc(writers, func(w string) bool { return strings.Contains(w, "gpupilot") }) {
		t.Errorf("scaled by %q, want the HPA controller only", writers)
	}
	t.Logf("replicas %d, written by %q", numbers, writers)
	able(t, "web", "Able", "HorizontalPodAutoscaler gpupilot-web")
	healthy(t)

	// The spec bounds it, and what others change in it is put back.
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"maxReplicas":25}}`)
	kept := func(what string) {
		t.Helper()
		stack.Eventually(t, func() error {
			h, err := owned(t, "gpupilot-web")
			if err != nil {
				return err
			}
			m := h.Spec.Metrics[0].External
			if len(h.Spec.Metrics) != 1 || m == nil || h.Spec.MaxReplicas != 25 || m.Metric.Selector.MatchLabels["gpuautoscaler"] != "web" || h.Spec.Behavior.ScaleUp.Tolerance.Sign() != 0 || len(h.OwnerReferences) != 1 {
				return fmt.Errorf("%s: %+v", what, h)
			}
			return nil
		})
	}
	kept("another maximum")
	patch(t, &autoscalingv2.HorizontalPodAutoscaler{}, "gpupilot-web", `{"spec":{"maxReplicas":13,"behavior":{"scaleUp":{"tolerance":"500m"}}}}`)
	kept("edited by others")
	patch(t, &autoscalingv2.HorizontalPodAutoscaler{}, "gpupilot-web", `{"metadata":{"ownerReferences":null}}`)
	kept("without its owner")
	first, err := owned(t, "gpupilot-web")
	if err != nil || rig.Client.Delete(t.Context(), first) != nil {
		t.Fatal("cannot delete it: ", err)
	}
	kept("deleted by others")

	// A restarted controller knows its own.
	rig.StopController()
	patch(t, &autoscalingv2.HorizontalPodAutoscaler{}, "gpupilot-web", `{"spec":{"maxReplicas":13}}`)
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	kept("edited while the controller was away")
	queue.set("14")
	rig.AwaitReplicas(t, namespace, "web", 14)

	takenOver(t, seen)

	// To Scale and back, while the load changes: one writer at a time, and no dip.
	_, _ = seen.take()
	queue.set("16")
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"actuation":"Scale"}}`)
	stack.Eventually(t, func() error {
		_, err := owned(t, "gpupilot-web")
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the HorizontalPodAutoscaler is not deleted: %w", err)
		}
		return nil
	})
	rig.AwaitReplicas(t, namespace, "web", 16)
	queue.set("17")
	rig.AwaitReplicas(t, namespace, "web", 17)
	numbers, writers = seen.take()
	t.Logf("to Scale: replicas %d, written by %q", numbers, writers)
	if slices.Min(numbers) < 14 {
		t.Errorf("a dip: %d", numbers)
	}
	able(t, "web", "Able", "is scaled by this GPUAutoscaler")
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"actuation":"HPA"}}`)
	queue.set("18")
	rig.AwaitReplicas(t, namespace, "web", 18)
	kept("created again")
	queue.set("20")
	rig.AwaitReplicas(t, namespace, "web", 20)
	if numbers, _ = seen.take(); !slices.IsSorted(numbers) {
		t.Errorf("a dip on the way back: %d", numbers)
	}

	// Without the metric nothing is scaled, and a condition says what to do.
	a, err := aggregator.NewForConfig(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	const api = "v1beta1.external.metrics.k8s.io"
	stack.Eventually(t, func() error { // the controller registers it again once a minute, perhaps before anybody has noticed
		if err := a.ApiregistrationV1().APIServices().Delete(t.Context(), api, metav1.DeleteOptions{}); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return isAble(t, "web", "HPAReadsNoMetric", "externalMetrics.enabled")
	})
	queue.set("5")
	n, err := rig.Replicas(t.Context(), namespace, "web")
	if _, missing := a.ApiregistrationV1().APIServices().Get(t.Context(), api, metav1.GetOptions{}); err != nil || n != 20 && apierrors.IsNotFound(missing) {
		t.Errorf("%d replicas without the metric, %v", n, err)
	}
	able(t, "web", "Able", "") // the controller has registered it again
	rig.AwaitReplicas(t, namespace, "web", 5)

	// It goes with the GPUAutoscaler.
	if err := rig.Client.Delete(t.Context(), byHPA("web")); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if _, err := owned(t, "gpupilot-web"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is left: %w", err)
		}
		return nil
	})
}

// takenOver kills the leader while the load rises and the HorizontalPodAutoscaler scales: first the replica of the
// controller that serves the metric, then the other one. The HorizontalPodAutoscaler stays, nobody else writes, and the
// replicas never fall.
func takenOver(t *testing.T, seen *recorder) {
	t.Helper()
	standby, err := rig.StartStandby(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	before, err := owned(t, "gpupilot-web")
	if err != nil {
		t.Fatal(err)
	}
	all := countHPAs(t)
	_, _ = seen.take()
	kills := []struct {
		to   int32
		kill func()
		next string // the URL of the next leader
	}{{19, rig.KillController, standby.URL}, {25, standby.Kill, rig.ControllerURL}}
	for i, k := range kills {
		rise(t, k.to, k.kill)
		stack.Eventually(t, func() error { return leads(t, k.next) })
		if i == 0 { // its Service is that of both
			if err := rig.StartController(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		rig.AwaitReplicas(t, namespace, "web", k.to)
		able(t, "web", "Able", "HorizontalPodAutoscaler gpupilot-web")
	}
	stack.Eventually(t, func() error { // the watch is behind the reads
		seen.mu.Lock()
		defer seen.mu.Unlock()
		if got := seen.numbers; got[len(got)-1] != 25 {
			return fmt.Errorf("the replicas were %d", got)
		}
		return nil
	})
	numbers, writers := seen.take()
	t.Logf("leaders killed: replicas %d, written by %q", numbers, writers)
	if !slices.IsSorted(numbers) {
		t.Errorf("a dip: %d", numbers)
	}
	if slices.ContainsFunc(writers, func(w string) bool { return strings.Contains(w, "gpupilot") }) {
		t.Errorf("scaled by %q, want the HPA controller only", writers)
	}
	if h, err := owned(t, "gpupilot-web"); err != nil || h.UID != before.UID || all() != 1 {
		t.Errorf("%d HorizontalPodAutoscalers, the last is %s, %v; want only %s", all(), h.UID, err, before.UID)
	}
}

// rise raises the load to a number of replicas, one by one, and ends the leader while the HPA controller follows.
func rise(t *testing.T, to int32, end func()) {
	t.Helper()
	from, err := rig.Replicas(t.Context(), namespace, "web")
	if err != nil {
		t.Fatal(err)
	}
	for n := from + 1; n <= to; n++ {
		queue.set(fmt.Sprint(n))
		if n == from+3 {
			stack.Eventually(t, func() error {
				if now, err := rig.Replicas(t.Context(), namespace, "web"); err != nil || now == from {
					return fmt.Errorf("%d replicas: %w", now, err)
				}
				return nil
			})
			end()
		}
	}
}

// leads returns an error unless the replica of the controller at a URL leads.
func leads(t *testing.T, url string) error {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(body), "\ngpupilot_leader 1\n") {
		err = fmt.Errorf("%s does not lead", url)
	}
	return err
}

// countHPAs returns a function that says how many HorizontalPodAutoscalers there have been from now on.
func countHPAs(t *testing.T) func() int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	w, err := rig.Client.Watch(ctx, &autoscalingv2.HorizontalPodAutoscalerList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	var all sync.WaitGroup
	all.Go(func() {
		for e := range w.ResultChan() {
			if h, ok := e.Object.(*autoscalingv2.HorizontalPodAutoscaler); ok {
				mu.Lock()
				seen[h.UID] = true
				mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { cancel(); w.Stop(); all.Wait() })
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}

// A tenant's HorizontalPodAutoscaler is a rival, whatever it says of itself, and is never changed.
func TestForgedHPA(t *testing.T) {
	queue.set("3")
	deploy(t, stack.Deployment(namespace, "web", 1, 0))
	deploy(t, stack.Deployment(namespace, "other", 1, 0))
	a := byHPA("web")
	a.Spec.Actuation = v1alpha1.ActuationAdvise
	rig.Create(t, a)
	forged := hpa("web", 2, "made-up", nil, "1")
	forged.Name = "gpupilot-web"
	forged.Labels = map[string]string{"app.kubernetes.io/managed-by": "gpupilot-controller"}
	forged.OwnerReferences = []metav1.OwnerReference{{APIVersion: "gpupilot.dev/v1alpha1", Kind: "GPUAutoscaler", Name: "web", UID: a.UID, Controller: new(true)}}
	unchanged := func() {
		t.Helper()
		got, err := owned(t, forged.Name)
		if err != nil || got.UID != forged.UID || got.Spec.Metrics[0].External.Metric.Name != forged.Spec.Metrics[0].External.Metric.Name || got.Spec.ScaleTargetRef != forged.Spec.ScaleTargetRef {
			t.Errorf("the forged HorizontalPodAutoscaler was changed: %+v, %v", got, err)
		}
	}
	remove := func(o client.Object) {
		t.Helper()
		if err := rig.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}

	// Of our name, before ours is there: of the same target, and of another one.
	rig.Create(t, forged)
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"actuation":"HPA"}}`)
	able(t, "web", "OwnedByAnother", "HorizontalPodAutoscaler gpupilot-web")
	unchanged()
	remove(forged)
	able(t, "web", "Able", "HorizontalPodAutoscaler gpupilot-web")
	rig.AwaitReplicas(t, namespace, "web", 3)

	// A copy of ours, of another name: ours goes, and the copy stays.
	ours, err := owned(t, "gpupilot-web")
	if err != nil {
		t.Fatal(err)
	}
	forged = ours.DeepCopy()
	forged.Name, forged.ResourceVersion, forged.UID = "copy", "", ""
	rig.Create(t, forged)
	able(t, "web", "OwnedByAnother", "HorizontalPodAutoscaler copy")
	unchanged()
	stack.Eventually(t, func() error {
		if _, err := owned(t, "gpupilot-web"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("ours is left: %w", err)
		}
		return nil
	})
	remove(forged)
	able(t, "web", "Able", "HorizontalPodAutoscaler gpupilot-web")

	// Our name is taken for another target.
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"actuation":"Scale"}}`)
	stack.Eventually(t, func() error {
		if _, err := owned(t, "gpupilot-web"); !apierrors.IsNotFound(err) {
			return fmt.Errorf("ours is left: %w", err)
		}
		return nil
	})
	forged = hpa("other", 2, "made-up", nil, "1")
	forged.Name = "gpupilot-web"
	rig.Create(t, forged)
	patch(t, &v1alpha1.GPUAutoscaler{}, "web", `{"spec":{"actuation":"HPA"}}`)
	able(t, "web", "HPANotKept", "HorizontalPodAutoscaler gpupilot-web is not owned by this GPUAutoscaler")
	unchanged()
	if n, err := rig.Replicas(t.Context(), namespace, "web"); err != nil || n != 3 {
		t.Errorf("%d replicas, %v", n, err)
	}
}
