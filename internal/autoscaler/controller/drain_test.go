// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// draining is a workload of two idle replicas of which one is enough, with spec.drain.
type draining struct {
	*rig
	w *workload
	a *v1alpha1.GPUAutoscaler
}

func newDraining(t *testing.T) *draining {
	t.Helper()
	a := autoscaler("chat")
	a.Spec.Drain = &v1alpha1.Drain{MaxSeconds: 20}
	gated := func(p *corev1.Pod) {
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: v1alpha1.ReadinessGate, Status: corev1.ConditionTrue})
	}
	since := time.Now().Add(-time.Hour)
	pods := []*corev1.Pod{pod("chat", "a", since, ready(since), gated), pod("chat", "b", since, ready(since), gated)}
	d := &draining{rig: newRig(t, deployment("chat", 2), a, pods[0].DeepCopy(), pods[1].DeepCopy()), a: a}
	d.pods.Pods = pods
	d.fleet.Disruptions.SetListed()
	d.w = d.add(a)
	return d
}

// second is a pass with this utilisation of the pods, and the cache after it.
func (d *draining) second(load ...float64) *v1alpha1.GPUAutoscalerStatus {
	d.t.Helper()
	d.now = d.now.Add(time.Second)
	for i, p := range d.pods.Pods {
		d.utilizationBy("agent-"+p.Name, "node-1", d.now, load[i], p)
	}
	d.w.pass(d.now)
	for i, p := range d.pods.Pods {
		is := &corev1.Pod{}
		if err := d.client.Get(d.t.Context(), client.ObjectKeyFromObject(p), is); err != nil {
			d.t.Fatal(err)
		}
		d.pods.Pods[i] = is
	}
	return statusOf(d.w.status.next, &v1alpha1.GPUAutoscalerStatus{})
}

func (d *draining) gates() (out string) {
	for _, p := range d.pods.Pods {
		c := replica.Gate(p)
		out += p.Name + " " + string(c.Status) + " " + c.Reason + "; "
	}
	return out
}

// A scale-down closes the gate of the idle replica, says so, and writes /scale at the
// deadline. Another controller that starts meanwhile goes on from the pod's condition.
func TestDrainBeforeScaleDown(t *testing.T) {
	d := newDraining(t)
	st := d.second(40, 5)
	if got := d.gates(); got != "a True ; b False Draining; " || d.replicas("chat") != 2 {
		t.Fatalf("gates %s, %d replicas: %s", got, d.replicas("chat"), st.LastDecision.Message)
	}
	st = d.second(45, 5)
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionDraining)
	if c == nil || c.Status != metav1.ConditionTrue || st.DrainingReplicas != 1 || st.ServingReplicas != 1 || st.CurrentReplicas != 2 {
		t.Errorf("condition %+v, status %+v", c, st)
	}
	if !strings.Contains(st.LastDecision.Message, "keep 2 instead of 1 for at most 19 s: a replica finishes its requests before it is removed") {
		t.Error(st.LastDecision.Message)
	}
	for range 4 {
		d.second(45, 5)
	}
	d.w = newWorkload(t.Context(), d.shared, d.route, d.a) // restarted, with an empty status
	for range 12 {
		d.second(45, 5)
	}
	if d.replicas("chat") != 2 {
		t.Fatalf("%d replicas before the deadline", d.replicas("chat"))
	}
	for range 6 {
		d.second(45, 5)
	}
	if d.replicas("chat") != 1 || d.gates() != "a True ; b False Draining; " {
		t.Errorf("%d replicas at the deadline, gates %s", d.replicas("chat"), d.gates())
	}
}

// A load that returns opens the gate in the same pass, and writes no /scale.
func TestDrainTakenBack(t *testing.T) {
	d := newDraining(t)
	d.second(40, 5)
	d.second(45, 5)
	st := d.second(95, 5)
	if got := d.gates(); got != "a True ; b True InService; " || d.replicas("chat") != 2 {
		t.Errorf("gates %s, %d replicas: %s", got, d.replicas("chat"), st.LastDecision.Message)
	}
}

func TestDrainHeldByDisruptionBudget(t *testing.T) {
	d := newDraining(t)
	d.fleet.Disruptions.Changed(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keep"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "chat"}}},
	}, false)
	st := d.second(40, 5)
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionDraining)
	if c == nil || c.Reason != "PodDisruptionBudget" || !strings.Contains(c.Message, "keep") || d.replicas("chat") != 2 || st.DrainingReplicas != 0 {
		t.Errorf("condition %+v, %d replicas", c, d.replicas("chat"))
	}
}

// Without the right to write pods' status the replica is removed at the deadline, the
// condition says why, and the API server is asked less and less often.
func TestDrainWithoutRights(t *testing.T) {
	d := newDraining(t)
	attempts := 0
	d.calls.SubResourcePatch = func(_ context.Context, _ client.Client, _ string, obj client.Object, _ client.Patch, _ ...client.SubResourcePatchOption) error {
		if _, ok := obj.(*corev1.Pod); ok {
			attempts++
			return errors.New("pods/status is forbidden")
		}
		return nil
	}
	var st *v1alpha1.GPUAutoscalerStatus
	for range 19 {
		st = d.second(40, 5)
	}
	c := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionDraining)
	if c == nil || c.Reason != "ReadinessGateNotWritten" || !strings.Contains(c.Message, "forbidden") || d.replicas("chat") != 2 || attempts > 8 {
		t.Errorf("condition %+v, %d replicas, %d attempts", c, d.replicas("chat"), attempts)
	}
	for range 4 {
		d.second(40, 5)
	}
	if d.replicas("chat") != 1 {
		t.Errorf("%d replicas after the deadline", d.replicas("chat"))
	}
}

// A decision that is only advised takes nothing out of the endpoints.
func TestAdviceDoesNotDrain(t *testing.T) {
	d := newDraining(t)
	d.a.Spec.Actuation = v1alpha1.ActuationAdvise
	d.w = d.add(d.a)
	st := d.second(40, 5)
	if got := d.gates(); got != "a True ; b True ; " || *st.DesiredReplicas != 1 {
		t.Errorf("gates %s, %d desired", got, *st.DesiredReplicas)
	}
}

// What the controller watches is in its clients' scheme: an informer of another kind never
// delivers, and without PodDisruptionBudgets no replica is removed.
func TestDisruptionBudgetsAreInTheScheme(t *testing.T) {
	if _, _, err := kube.Scheme().ObjectKinds(&policyv1.PodDisruptionBudget{}); err != nil {
		t.Error(err)
	}
}
