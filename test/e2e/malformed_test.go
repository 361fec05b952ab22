// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// anySchema has the API server store anything as a GPUAutoscaler until the
// test's end.
func anySchema(t *testing.T) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Name: "gpuautoscalers.gpupilot.dev"}, crd); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	schema := versions[0].(map[string]any)["schema"]
	set := func(ctx context.Context, schema any) error {
		patch, err := json.Marshal([]any{map[string]any{"op": "replace", "path": "/spec/versions/0/schema", "value": schema}})
		if err != nil {
			return err
		}
		return rig.Client.Patch(ctx, crd.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	}
	if err := set(t.Context(), map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := set(context.Background(), schema); err != nil {
			t.Error(err)
		}
	})
}

// stored makes a GPUAutoscaler whatever it consists of, and deletes it at the test's end.
func stored(t *testing.T, name string, spec, status any) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	u.SetNamespace(namespace)
	u.SetName(name)
	stack.Eventually(t, func() error { // until the schema is known to be another
		err := rig.Client.Create(t.Context(), u.DeepCopy())
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), u) })
	if status == nil {
		return
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.Status().Patch(t.Context(), u.DeepCopy(), client.RawPatch(types.MergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
}

// What is stored without a schema costs that object only: a controller that
// starts lists it, says so, and scales the others.
func TestMalformedObjectsCostThemselves(t *testing.T) {
	const name = "podsmetric"
	rig.Offer(name, 0.2)
	rig.Deploy(t, name, 1, time.Second)
	anySchema(t)
	good, err := json.Marshal(stack.Autoscaler(name).Spec)
	if err != nil {
		t.Fatal(err)
	}
	spec := func(change func(map[string]any)) (out map[string]any) {
		if err := json.Unmarshal(good, &out); err != nil {
			t.Fatal(err)
		}
		change(out)
		return out
	}
	// They are older than the good one, and claim its target.
	stored(t, "malformed", spec(func(s map[string]any) { s["maxReplicas"] = "many" }), nil)
	stored(t, "malformed-spec", "yes", nil)
	stored(t, "malformed-signals", spec(func(s map[string]any) {
		s["signals"] = []any{map[string]any{"preset": "vllm", "slo": map[string]any{"interTokenLatency": "50"}}}
	}), nil)
	stored(t, "malformed-path", spec(func(s map[string]any) {
		s["signals"] = []any{map[string]any{"preset": "vllm", "path": "@127.0.0.1:1/x"}}
	}), nil)
	stored(t, "invalid", spec(func(s map[string]any) { s["maxReplicas"] = int64(0) }), map[string]any{
		"conditions": "none", "startup": map[string]any{"p95Seconds": "long"}, "memory": []any{int64(1)}, "currentReplicas": "x",
	})
	rig.StopController()
	stored(t, name, spec(func(map[string]any) {}), map[string]any{
		"conditions": "none", "startup": map[string]any{"p50Seconds": int64(1), "p95Seconds": int64(2_000_000_000), "samples": int64(20)},
		"memory": map[string]any{"time": "yesterday", "state": int64(7)}, "lastDecision": int64(5),
	})
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.Offer(name, 1.9)
	rig.WantReplicas(t, name, "at least 3", func(n int32) bool { return n >= 3 })
	stack.Eventually(t, func() error { // the garbage in its status was replaced
		if s := rig.Status(t, name); s.LastDecision == nil || s.Startup != nil && s.Startup.P95Seconds > 3600 {
			return fmt.Errorf("its status is %+v", s)
		}
		return nil
	})
	for _, bad := range []string{"malformed", "malformed-spec", "malformed-signals", "malformed-path", "invalid"} {
		stack.Eventually(t, func() error { return saysInvalid(t.Context(), bad) })
	}
	for _, bad := range []string{"malformed", "malformed-spec", "malformed-signals"} {
		stack.Eventually(t, func() error {
			return metered(`gpupilot_autoscaler_malformed{name="` + bad + `",namespace="` + namespace + `",part="spec"} 1`)
		})
	}
	if err := metered(`gpupilot_autoscaler_malformed{name="` + name + `",namespace="` + namespace + `",part="spec"}`); err == nil {
		t.Error("the good one is counted as malformed")
	}
	rig.Offer(name, 0.2)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// saysInvalid reports whether an object says by a condition and an Event that
// its spec is invalid.
func saysInvalid(ctx context.Context, name string) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	if err := rig.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
		return err
	}
	b, err := json.Marshal(u.Object["status"])
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), `"InvalidSpec"`) {
		return fmt.Errorf("the status of %s is %s", name, b)
	}
	var events eventsv1.EventList
	if err := rig.Client.List(ctx, &events, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range events.Items {
		if e := &events.Items[i]; e.Regarding.Name == name && e.Reason == "InvalidSpec" {
			return nil
		}
	}
	return fmt.Errorf("no Event about %s", name)
}

// metered reports whether the controller's metrics have a line.
func metered(line string) error {
	resp, err := http.Get(rig.ControllerURL + "/metrics")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if !strings.Contains(string(b), line) {
		return errors.New("no metric " + line)
	}
	return nil
}

// What the scheduler and the kubelet say about pods that do not start is in
// the status.
func TestPendingIsToldInTheirWords(t *testing.T) {
	const name = "pending"
	d := stack.Deployment(namespace, name, 2, 0)
	d.Spec.Template.Spec.Containers[0].Resources.Limits[simnode.GPUResource] = resource.MustParse("99")
	rig.Create(t, d)
	stuck := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-image", Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "no-such-node", Containers: []corev1.Container{{Name: "server", Image: "registry.example/none"}}},
	}
	if err := rig.Client.Create(t.Context(), stuck); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), stuck, client.GracePeriodSeconds(0)) })
	created := stuck.DeepCopy() // a patch does not meet the version of others' writes
	stuck.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "server", Image: "registry.example/none", State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: `Back-off pulling image "registry.example/none"`},
	}}}
	if err := rig.Client.Status().Patch(t.Context(), stuck, client.MergeFrom(created)); err != nil {
		t.Fatal(err)
	}
	rig.Autoscale(t, name, nil)
	stack.Eventually(t, func() error {
		pending := rig.Status(t, name).Pending
		if len(pending) != 2 || pending[0].Reason != "Unschedulable" || pending[0].Replicas != 2 ||
			!strings.Contains(pending[0].Message, "Insufficient "+simnode.GPUResource) ||
			pending[1].Reason != "ImagePullBackOff" || !strings.Contains(pending[1].Message, "Back-off pulling image") {
			return fmt.Errorf("pending: %+v", pending)
		}
		return nil
	})
}
