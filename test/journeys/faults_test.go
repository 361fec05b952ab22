// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// Faults change what all workloads share, so these tests run one after the other, before the parallel ones.

// When an agent dies its pods' data goes stale, and nothing scales down.
func TestAgentDies(t *testing.T) {
	const name, load = "agentdies", 1.5
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, time.Second)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		zero := int32(0)
		a.Spec.Behavior.ScaleDown.StabilizationWindowSeconds = &zero
	})
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)

	// One agent dies: what the others say must not pass for the whole.
	agents := agentsByNode(t, name)
	first := agents[0]
	if err := rig.Nodes.Kill(stack.Namespace, first); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if d := rig.Status(t, name).LastDecision; len(d.Inputs) == 0 || d.Inputs[0].Replicas == 3 {
			return fmt.Errorf("the dead agent's values still count: %+v", d)
		}
		return nil
	})
	rig.Stays(t, name, 3, 5)

	// All die, and the load really goes away: still nothing is known of it.
	for _, a := range agents[1:] {
		if err := rig.Nodes.Kill(stack.Namespace, a); err != nil {
			t.Fatal(err)
		}
	}
	rig.Offer(name, 0)
	stack.Eventually(t, func() error {
		if d := rig.Status(t, name).LastDecision; !strings.Contains(d.Reason, "Missing") {
			return fmt.Errorf("with every agent dead the reason is %s: %s", d.Reason, d.Message)
		}
		return nil
	})
	rig.Stays(t, name, 3, 5)
	if v := seen.Values(); slices.Min(v) < 3 {
		t.Errorf("replicas went %v while agents died", v)
	}

	// They come back, and with them the truth.
	for _, a := range agents {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: a}}
		if err := rig.Client.Delete(t.Context(), p, client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// agentsByNode are the agents of the nodes on which the workload's pods run.
func agentsByNode(t *testing.T, name string) []string {
	t.Helper()
	var pods, agents corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.List(t.Context(), &agents, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-agent"}); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range agents.Items {
		if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName == a.Spec.NodeName }) {
			out = append(out, a.Name)
		}
	}
	if len(out) == 0 {
		t.Fatalf("no agent on the nodes of %s", name)
	}
	return out
}

// The controller is killed in the middle of a rise: its successor goes on.
func TestControllerRestartsMidRamp(t *testing.T) {
	const name, load = "restart", 3.4
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, 3*time.Second)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	rig.Offer(name, load)
	rig.WantReplicas(t, name, "more than 1", func(n int32) bool { return n > 1 })
	rig.KillController()
	before, err := rig.Replicas(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	rig.Serves(t, name, load)
	values := seen.Values()
	for i, n := range values[1:] {
		if n < values[i] {
			t.Errorf("replicas went %v: down in the middle of a rise (killed at %d)", values, before)
		}
	}
	if peak := slices.Max(values); float64(peak) > 1.5*float64(stack.Need(load)) {
		t.Errorf("replicas went %v: more than 1.5 times the %d that were needed", values, stack.Need(load))
	}
}

// While the API server is away the controller serves what it knows, nothing
// scales, and afterwards everything goes on.
func TestAPIServerAway(t *testing.T) {
	const name, load = "restart", 1.6
	rig.Offer(name, load)
	rig.Deploy(t, name, 3, time.Second)
	rig.Spread(t, name, 3)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 3)
	seen := rig.Record(t, name)
	rig.Cluster.StopAPIServer()
	stack.Leads(t, rig.ControllerURL, false) // the lease has ended, and the page is served
	if err := rig.Cluster.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Leads(t, rig.ControllerURL, true)
	rig.Stays(t, name, 3, 5)
	if values := seen.Values(); slices.Min(values) < 3 {
		t.Errorf("replicas went %v while the API server was away", values)
	}
	rig.Offer(name, 3)
	rig.WantReplicas(t, name, "5 or more", func(n int32) bool { return n >= 5 })
	rig.Offer(name, 0.2)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// While Prometheus is down the workload is held, and the status says why. Afterwards the query decides again.
func TestPrometheusDown(t *testing.T) {
	const name = "promdown"
	defer func() { // the queries of the tests that follow run over the controller's own windows
		if err := rig.RestartController(context.WithoutCancel(t.Context()), arguments...); err != nil {
			t.Error(err)
		}
	}()
	rig.Prometheus.SetBacklog(12)
	rig.Offer(name, 0.1)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals = []v1alpha1.Signal{{
			Query:  &v1alpha1.QuerySignal{PromQL: "sum(backlog)"},
			Target: &v1alpha1.Target{Value: resource.MustParse("5")},
		}}
	})
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	seen := rig.Record(t, name)

	rig.Prometheus.Interrupt()
	rig.Prometheus.SetBacklog(0)
	stack.Eventually(t, func() error {
		for _, c := range rig.Status(t, name).Conditions {
			if c.Type == v1alpha1.ConditionSignals && c.Status != "True" && strings.Contains(c.Message, "cannot be reached") {
				return nil
			}
		}
		return fmt.Errorf("the status does not say that Prometheus cannot be reached: %+v", rig.Status(t, name).Conditions)
	})
	rig.Stays(t, name, 3, 5)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v while Prometheus was down", v)
	}

	if err := rig.Prometheus.Start(); err != nil {
		t.Fatal(err)
	}
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })
}

// A node goes, with its agent and its pods: the replicas that remain decide, and what is missing takes nothing away.
func TestNodeRemoved(t *testing.T) {
	const name, before, load = "noderemoved", 2.0, 3.4
	rig.Offer(name, before)
	rig.Deploy(t, name, 4, time.Second)
	rig.Spread(t, name, 4)
	seen := rig.Record(t, name)
	rig.Autoscale(t, name, nil)
	rig.Measured(t, name, 4)

	node := nodeOf(t, name)
	if err := rig.Nodes.PowerOff(node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { powerOn(t, node) })
	rig.Offer(name, load)
	rig.WantReplicas(t, name, "what the load needs", func(n int32) bool { return n >= stack.Need(load) })
	remove(t.Context(), t, node)
	rig.Serves(t, name, load)
	if v := seen.Values(); !slices.IsSorted(v) {
		t.Errorf("replicas went %v: down in the middle of a rise", v)
	}
}

// nodeOf is a node with pods of the workload, but not with all of them.
func nodeOf(t *testing.T, name string) string {
	t.Helper()
	var pods corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{"app": name}); err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for i := range pods.Items {
		on[pods.Items[i].Spec.NodeName]++
	}
	for node, n := range on {
		if n < len(pods.Items) {
			return node
		}
	}
	t.Fatalf("all %d pods of %s are on one node: %v", len(pods.Items), name, on)
	return ""
}

// remove deletes a node and what was on it, as the cluster does with a node that does not come back.
func remove(ctx context.Context, t *testing.T, node string) {
	t.Helper()
	if err := rig.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	var pods corev1.PodList
	if err := rig.Client.List(ctx, &pods, client.MatchingFields{"spec.nodeName": node}); err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		if err := rig.Client.Delete(ctx, &pods.Items[i], client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
}

// powerOn brings a node back for the tests that follow.
func powerOn(t *testing.T, node string) {
	ctx := context.WithoutCancel(t.Context())
	remove(ctx, t, node)
	if err := rig.Nodes.PowerOn(ctx, node); err != nil {
		t.Error(err)
	}
}
