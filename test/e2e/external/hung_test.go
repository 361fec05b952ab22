// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package external

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

const hungReplicas = 6

// The agent of a node hangs. It is the node of the two replicas of each Deployment that
// carry the load, so what is still read is idle. Whatever the replicas are scaled by, there
// are as many until the agent is back: an HPA on an object, on a MetricQuery of GPUs, of
// PromQL over our aggregates and of a recording rule, and a GPUAutoscaler.
func TestAHungAgentRemovesNoReplica(t *testing.T) {
	controllerArgs(t, overWindows...)
	names := []string{"object", "gpus", "promql", "recorded", "autoscaled"}
	for _, name := range names {
		createSpread(t, name)
	}
	stack.Eventually(t, func() error {
		ready, err := rig.ReadyPods(t.Context(), namespace)
		if err == nil && len(ready) != len(names)*hungReplicas {
			err = fmt.Errorf("%d pods serve", len(ready))
		}
		return err
	})

	// The states of the GPUs are ours from now on: simnode writes a node's only if they change.
	node := rig.Nodes.NodeNames()[0]
	busy := sim.State{GPUs: make([]sim.GPUState, gpusPerNode)}
	for i := range busy.GPUs {
		busy.GPUs[i] = sim.Busy(96, 1000)
	}
	if err := sim.WriteState(rig.Nodes.StateFile(node), busy); err != nil {
		t.Fatal(err)
	}
	scaleHung(t)
	seesLoad(t)

	seen := map[string]*recorder{}
	for _, name := range names {
		seen[name] = record(t, name)
	}
	agent := agentOn(t, node)
	if err := rig.Nodes.Hang(stack.Namespace, agent); err != nil {
		t.Fatal(err)
	}
	saysWhy(t, agent)
	rig.Scraped(t, 5) // the other agents
	if err := rig.Nodes.Resume(stack.Namespace, agent); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpus", "promql", "recorded"} {
		ready(t, name, metav1.ConditionTrue, "Value")
	}
	seesLoad(t)
	for name, r := range seen {
		if numbers, _ := r.take(); !slices.Equal(numbers, []int32{hungReplicas}) {
			t.Errorf("the replicas of %s were %d", name, numbers)
		}
	}

	// The aggregates are not stuck: without load, the replicas go.
	for i := range busy.GPUs {
		busy.GPUs[i] = sim.Busy(0, 0)
	}
	if err := sim.WriteState(rig.Nodes.StateFile(node), busy); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		rig.AwaitReplicas(t, namespace, name, 1)
	}
}

// createSpread makes a Deployment of six pods with a GPU each, two on each node.
func createSpread(t *testing.T, name string) {
	t.Helper()
	d := stack.Deployment(namespace, name, hungReplicas, 0)
	d.Spec.Template.Annotations[simnode.WorkloadAnnotation] = ""
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
	}}
	deploy(t, d)
}

// scaleHung scales each Deployment on the mean utilisation of its pods. It is 32 %, a third
// of that of the pods with load, and so is the target.
func scaleHung(t *testing.T) {
	t.Helper()
	value := resource.MustParse("32")
	target := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &value}
	object := hpa("object", 1, "", nil, "32")
	object.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ObjectMetricSourceType, Object: &autoscalingv2.ObjectMetricSource{
		DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "object"},
		Metric:          autoscalingv2.MetricIdentifier{Name: "gpu_utilization"}, Target: target,
	}}}
	gpus := metricQuery("gpus", "", "")
	gpus.Spec = v1alpha1.MetricQuerySpec{GPU: &v1alpha1.MetricQueryGPU{
		Metric: "Utilization", ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "gpus"},
	}}
	rig.Create(t, gpus)
	rig.Create(t, metricQuery("promql", "", `100 * avg(gpupilot_workload_gpu_utilization_ratio{kind="Deployment",name="promql",in_use="allocated",stat="avg"})`))
	rig.Create(t, metricQuery("recorded", "", `avg(recorded:utilization{name="recorded"})`))
	for _, name := range []string{"gpus", "promql", "recorded"} {
		stack.Eventually(t, func() error { // the load, which the agents and the aggregates read in turn
			var q v1alpha1.MetricQuery
			err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &q)
			if err == nil && (q.Status.Value == nil || q.Status.Value.Value() < 30) {
				err = fmt.Errorf("MetricQuery %s: %+v", name, q.Status)
			}
			return err
		})
	}
	rig.Create(t, object)
	for _, name := range []string{"gpus", "promql", "recorded"} {
		h := hpa(name, 1, name, nil, "32")
		h.Spec.Metrics[0].External.Target = target
		rig.Create(t, h)
	}
	now := int32(0)
	rig.Create(t, &v1alpha1.GPUAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "autoscaled"},
		Spec: v1alpha1.GPUAutoscalerSpec{
			ScaleTargetRef: v1alpha1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "autoscaled"}, MaxReplicas: 6,
			Signals:  []v1alpha1.Signal{{GPU: &v1alpha1.GPUSignal{Metric: "Utilization"}, Target: &v1alpha1.Target{Value: value}}},
			Behavior: &v1alpha1.Behavior{ScaleDown: &v1alpha1.ScalingRules{StabilizationWindowSeconds: &now}},
		},
	})
}

// seesLoad waits until all HPAs have read a value.
func seesLoad(t *testing.T) {
	t.Helper()
	for _, name := range []string{"object", "gpus", "promql", "recorded"} {
		stack.Eventually(t, func() error {
			if c := scalingActive(t, name); c.Status != corev1.ConditionTrue {
				return fmt.Errorf("HPA %s: %+v", name, c)
			}
			return nil
		})
	}
}

func scalingActive(t *testing.T, name string) (found autoscalingv2.HorizontalPodAutoscalerCondition) {
	t.Helper()
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &h); err != nil {
		t.Fatal(err)
	}
	for _, c := range h.Status.Conditions {
		if c.Type == autoscalingv2.ScalingActive {
			found = c
		}
	}
	return found
}

// saysWhy waits until each autoscaler says why it does nothing.
func saysWhy(t *testing.T, agent string) {
	t.Helper()
	node := rig.Nodes.NodeNames()[0]
	for name, want := range map[string]string{
		"object":   "2 of its 6 serving pods have no value from the last 5s, and the others could look like less load (object-",
		"gpus":     "2 of its 6 serving pods have no value from the last 5s, and the others could look like less load (gpus-",
		"promql":   "2 of its GPUs have no value (promql-",
		"recorded": "2 of its GPUs have no value (recorded-",
	} {
		stack.Eventually(t, func() error {
			c := scalingActive(t, name)
			if c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, want) || !strings.Contains(c.Message, "node "+node) {
				return fmt.Errorf("HPA %s: %s %s, want %q with %s; the agent is %s", name, c.Status, c.Message, want, node, agent)
			}
			t.Logf("HPA %s: %s", name, c.Message)
			return nil
		})
	}
	for _, name := range []string{"gpus", "promql", "recorded"} {
		ready(t, name, metav1.ConditionFalse, "NoValue")
	}
	stack.Eventually(t, func() error {
		var a v1alpha1.GPUAutoscaler
		err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "autoscaled"}, &a)
		if d := a.Status.LastDecision; err != nil || d == nil || !strings.Contains(fmt.Sprint(d.Steps), "PartialData") {
			return fmt.Errorf("the GPUAutoscaler decided %+v, %w", d, err)
		}
		return nil
	})
}

// agentOn returns the name of a node's agent.
func agentOn(t *testing.T, node string) string {
	t.Helper()
	var pods corev1.PodList
	if err := rig.Client.List(context.WithoutCancel(t.Context()), &pods, client.InNamespace(stack.Namespace), client.MatchingFields{"spec.nodeName": node}); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if strings.HasPrefix(pods.Items[i].Name, "gpupilot-agent") {
			return pods.Items[i].Name
		}
	}
	t.Fatalf("no agent on %s", node)
	return ""
}
