// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package groups

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	namespace = "llm"
	name      = "big"
	capacity  = 10.0 // requests/s that a pod serves at 100 % utilisation
)

var (
	rig  *stack.Stack
	load stack.Load
)

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{
		AgentTokens: true, AgentArgs: []string{"--kubernetes-enable-dra"}, // with an account, to read ResourceSlices
		Nodes:     12,
		Workloads: []simnode.Workload{{Name: name, Model: simnode.Model{Capacity: capacity, Concurrency: 16, QueueLimit: 60}, Offered: load.At}},
	}, func(s *stack.Stack) error {
		rig = s
		stop, err := leaderWorkerSets(context.Background(), s)
		if err == nil {
			s.OnClose(stop)
		}
		return err
	})
}

// A model on four pods of eight GPUs, and a budget of 64 GPUs. The leader has a template of
// its own, as vLLM's example does. GPUS is how a container has its GPUs, CLAIMS the pod.
const manifest = `
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: eight, namespace: llm}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 8}}]}}}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: big, namespace: llm}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 4
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels: {role: leader}
        annotations: {sim.gpupilot.dev/workload: big, sim.gpupilot.dev/startup: 1s}
      spec:
        terminationGracePeriodSeconds: 1
        CLAIMS
        containers: [{name: server, image: vllm, resources: {GPUS}}]
    workerTemplate:
      metadata:
        annotations: {sim.gpupilot.dev/workload: big, sim.gpupilot.dev/startup: 3s}
      spec:
        terminationGracePeriodSeconds: 1
        CLAIMS
        containers: [{name: server, image: vllm, resources: {GPUS}}]
---
apiVersion: gpupilot.dev/v1alpha1
kind: GPUAutoscaler
metadata: {name: big, namespace: llm}
spec:
  scaleTargetRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: big}
  minReplicas: 1
  maxReplicas: 10
  budget: {maxGPUs: 64}
  signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 2}}
`

// decision is the last one that the page shows.
func decision(t *testing.T) view.Decision {
	t.Helper()
	var v view.View
	if err := json.Unmarshal([]byte(stack.Get(t, rig.ControllerURL+"/api/v1/view")), &v); err != nil {
		t.Fatal(err)
	}
	for _, w := range v.Workloads {
		if w.Namespace == namespace && w.Name == name && w.Decision != nil {
			return *w.Decision
		}
	}
	return view.Decision{}
}

func replicas(t *testing.T) int64 {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"})
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
		t.Fatal(err)
	}
	n, _, err := unstructured.NestedInt64(u.Object, "spec", "replicas")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func wantReplicas(t *testing.T, want int64) {
	t.Helper()
	stack.Eventually(t, func() error {
		if n := replicas(t); n != want {
			return fmt.Errorf("%d groups, want %d: %s", n, want, decision(t).Sentence)
		}
		return nil
	})
}

func wantServing(t *testing.T, want int32) {
	t.Helper()
	stack.Eventually(t, func() error {
		if d := decision(t); d.Serving != want {
			return fmt.Errorf("%d groups serve, want %d: %s", d.Serving, want, d.Sentence)
		}
		return nil
	})
}

func pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{}
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, p); err != nil {
		t.Fatal(err)
	}
	return p
}

// A group of a LeaderWorkerSet is one replica. It serves when all of its pods do, its GPUs
// are those of all of them, and the last group is the one that goes.
func TestGroups(t *testing.T) {
	t.Run("the device plugin's GPUs", func(t *testing.T) { testGroups(t, "limits: {nvidia.com/gpu: 8}", "") })
	t.Run("GPUs of resource claims", func(t *testing.T) {
		if err := rig.Nodes.PublishSlices(t.Context()); err != nil {
			t.Fatal(err)
		}
		testGroups(t, "claims: [{name: gpus}]", "resourceClaims: [{name: gpus, resourceClaimTemplateName: eight}]")
	})
}

// remove deletes the groups and waits until their pods are gone, so that the GPUs are free.
func remove(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	groups := &unstructured.Unstructured{}
	groups.SetGroupVersionKind(schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"})
	groups.SetNamespace(namespace)
	groups.SetName(name)
	a := &v1alpha1.GPUAutoscaler{}
	a.Namespace, a.Name = namespace, name
	for _, o := range []client.Object{a, groups} {
		if err := rig.Client.Delete(ctx, o); err != nil {
			t.Error(err)
		}
	}
	if err := stack.Await(ctx, stack.Patience, func() error {
		var pods corev1.PodList
		if err := rig.Client.List(ctx, &pods, client.InNamespace(namespace)); err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d pods are left: %w", len(pods.Items), err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func testGroups(t *testing.T, gpus, claims string) {
	load.Set(4 * capacity * 0.3)
	t.Cleanup(func() { remove(t) })
	if err := rig.Apply(t.Context(), []byte(strings.NewReplacer("GPUS", gpus, "CLAIMS", claims).Replace(manifest))); err != nil {
		t.Fatal(err)
	}
	wantServing(t, 1)
	for _, worker := range []string{"big-0-1", "big-0-2", "big-0-3"} {
		if !replica.IsReady(pod(t, worker)) {
			t.Errorf("the group serves, and %s is not ready", worker)
		}
	}
	first := pod(t, "big-0").UID

	// Far more load than 64 GPUs serve: two groups, and never a third.
	load.Set(4 * capacity * 8)
	wantReplicas(t, 2)
	wantServing(t, 2)
	rig.Decides(t, name, 10)
	if n := replicas(t); n != 2 {
		t.Fatalf("%d groups of 32 GPUs under a budget of 64: %s", n, decision(t).Sentence)
	}

	// A worker that is lost takes its group with it, and the leader of the group stays ready for a moment.
	statuses := rig.Statuses(t, name)
	if err := rig.Client.Delete(t.Context(), pod(t, "big-1-2")); err != nil {
		t.Fatal(err)
	}
	statuses.Await(t, func(st v1alpha1.GPUAutoscalerStatus) error {
		if st.ServingReplicas != 1 {
			return fmt.Errorf("%d groups serve, want 1", st.ServingReplicas)
		}
		return nil
	})
	wantServing(t, 2)

	load.Set(4 * capacity * 0.3)
	wantReplicas(t, 1)
	wantServing(t, 1)
	if p := pod(t, "big-0"); p.UID != first || p.DeletionTimestamp != nil {
		t.Error("the first group was removed, and not the last one")
	}
	var a v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil {
		t.Fatal(err)
	}
	if l := a.Status.Startup; l == nil || l.P50Seconds < 3 {
		t.Errorf("learned start-up %+v, want that of the slowest pod, 3 s at least", l)
	}
}
