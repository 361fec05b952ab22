// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/memory"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A workload leaves zero replicas and goes back to them, by a query.
func TestToAndFromZero(t *testing.T) {
	const name = "zero"
	rig.Prometheus.SetBacklog(0)
	rig.Offer(name, 0.1)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		zero, activation := int32(0), resource.MustParse("0")
		a.Spec.MinReplicas = &zero
		a.Spec.Signals = append(a.Spec.Signals, v1alpha1.Signal{
			Query:  &v1alpha1.QuerySignal{PromQL: "sum(backlog)"},
			Target: &v1alpha1.Target{Value: resource.MustParse("5")}, Activation: &activation,
		})
	})
	rig.WantReplicas(t, name, "0", func(n int32) bool { return n == 0 })
	rig.Prometheus.SetBacklog(12)
	rig.WantReplicas(t, name, "3", func(n int32) bool { return n == 3 })
	rig.Prometheus.SetBacklog(math.NaN()) // no answer is not zero
	stack.Eventually(t, func() error {
		for _, c := range rig.Status(t, name).Conditions {
			if c.Type == v1alpha1.ConditionSignals && strings.Contains(c.Message, "no series matches") {
				return nil
			}
		}
		return fmt.Errorf("the status does not say that the query has no answer: %+v", rig.Status(t, name).Conditions)
	})
	rig.Stays(t, name, 3, 5)
	rig.Prometheus.SetBacklog(0)
	rig.WantReplicas(t, name, "0", func(n int32) bool { return n == 0 })
}

// A preset reads a server's requests, queue and KV cache without naming one.
func TestPreset(t *testing.T) {
	const name = "preset"
	rig.Offer(name, 0.95)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, func(a *v1alpha1.GPUAutoscaler) {
		a.Spec.Signals = []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM, Target: &v1alpha1.Target{Value: resource.MustParse("8")}}}
	})
	rig.WantReplicas(t, name, "at least 2", func(n int32) bool { return n >= 2 })
	stack.Eventually(t, func() error {
		d := rig.Status(t, name).LastDecision
		if d == nil || len(d.Inputs) < 2 || d.Inputs[0].Signal != "vllm requests" {
			return fmt.Errorf("the last decision is %+v, want one from the preset's signals", d)
		}
		for _, in := range d.Inputs {
			if in.Replicas == 0 {
				return fmt.Errorf("%s cannot be read", in.Signal)
			}
		}
		return nil
	})
	rig.Offer(name, 0.2)
	rig.WantReplicas(t, name, "1", func(n int32) bool { return n == 1 })

	// What comes was counted from the server's own page.
	const offered = 0.2 * stack.Capacity // requests/s
	stack.Eventually(t, func() error {
		m := rig.Status(t, name).Memory
		if m == nil {
			return errors.New("the status keeps no memory")
		}
		s, err := memory.Stored(m)
		if err != nil {
			return err
		}
		if len(s.Signals) == 0 || math.Abs(s.Signals[0].Arrivals.Rate/offered-1) > 0.25 {
			return fmt.Errorf("the memory is %+v, want an arrival rate of about %g requests/s", s, offered)
		}
		return nil
	})
}

// The controller keeps the nodes' condition, and tells of a change.
func TestNodeHealth(t *testing.T) {
	healthy := func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "GPUHealthy" && c.Status == corev1.ConditionTrue
		})
	}
	var nodes corev1.NodeList
	allHealthy := func() error {
		if err := rig.Client.List(t.Context(), &nodes); err != nil {
			return err
		}
		for i := range nodes.Items {
			if !healthy(&nodes.Items[i]) {
				return fmt.Errorf("node %s has the conditions %+v", nodes.Items[i].Name, nodes.Items[i].Status.Conditions)
			}
		}
		return nil
	}
	stack.Eventually(t, allHealthy)

	// A controller that starts finds a node ill that is well again.
	rig.StopController()
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: "GPUHealthy", Status: corev1.ConditionFalse, Reason: "GPULost", Message: "of yesterday",
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := rig.Client.Status().Patch(t.Context(), &nodes.Items[0], client.RawPatch(types.StrategicMergePatchType, patch)); err != nil {
		t.Fatal(err)
	}
	if err := rig.StartController(t.Context()); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, allHealthy)
	stack.Eventually(t, func() error {
		var events eventsv1.EventList
		if err := rig.Client.List(t.Context(), &events, client.InNamespace("default")); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Kind == "Node" && e.Regarding.Name == nodes.Items[0].Name && e.Reason == "GPUsHealthy" {
				return nil
			}
		}
		return fmt.Errorf("none of %d events tells of it", len(events.Items))
	})
}
