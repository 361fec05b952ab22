// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/explain"
	"github.com/gpupilot/gpupilot/internal/autoscaler/shown"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// View returns the current state of the fleet and the workloads.
func (c *Controller) View() view.View {
	now := time.Now()
	v := view.View{
		Time: now, MaxAge: c.cfg.MaxAge, Version: c.cfg.Version,
		Leader: c.deps.Leading(), LeaderID: c.deps.Leader(),
		Nodes: shown.Nodes(c.deps.Store, c.deps.Devices, c.deps.Pods, now, c.cfg.MaxAge), Targets: c.deps.States(),
		HPAs: c.rivals.HPAs(), Recent: c.recent.List(),
	}
	found, contradictions := c.discovered.Load(), c.audit.ByTarget()
	for i := range v.Targets {
		t := &v.Targets[i]
		t.Node, t.Contradiction = found.Origins[t.Name].Node, contradictions[t.Name]
	}
	for i := range v.Targets {
		c.viewTarget(&v.Targets[i], found.Origins[v.Targets[i].Name].Pod)
	}
	v.Nodes = shown.WithSilent(v.Nodes, v.Targets, c.deps.Devices)
	workloads := c.allWorkloads()
	v.Workloads = make([]view.Workload, 0, len(workloads))
	for _, w := range workloads {
		w.mu.Lock()
		x := w.shown
		w.mu.Unlock()
		if d := x.Decision; d != nil && d.Starting > 0 {
			x.StartingSince = c.startingSince(w)
		}
		v.Workloads = append(v.Workloads, x)
	}
	slices.SortFunc(v.Workloads, func(a, b view.Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return v
}

// viewTarget adds the namespace of a target whose samples are its pod's own, and its start
// time if the pod has not been ready yet.
func (c *Controller) viewTarget(t *view.Target, at types.NamespacedName) {
	if t.Kind == discovery.KindPod {
		t.Namespace = at.Namespace
	}
	pod, ok := c.deps.Pods.Get(at.Namespace, at.Name)
	if !ok || t.Up {
		return
	}
	if phase, _ := replica.PhaseOf(pod); phase == scale.Starting && replica.IsNew(pod) {
		t.Starting = pod.CreationTimestamp.Time
	}
}

// startingSince returns the creation time of the oldest starting replica of w.
func (c *Controller) startingSince(w *workload) (since time.Time) {
	sel := w.selector.Load()
	if sel == nil {
		return since
	}
	for _, pod := range c.deps.Pods.Select(w.key.Namespace, *sel) {
		if phase, _ := replica.PhaseOf(pod); phase != scale.Starting || replica.Finished(pod) {
			continue
		}
		if at := pod.CreationTimestamp.Time; since.IsZero() || at.Before(since) {
			since = at
		}
	}
	return since
}

// viewWorkload converts a report for the page.
func viewWorkload(r *pass) view.Workload {
	a := r.Object
	out := view.Workload{
		Namespace: a.Namespace, Name: a.Name, Kind: excerpt.Of(a.Spec.ScaleTargetRef.Kind, view.MaxName), Target: excerpt.Of(a.Spec.ScaleTargetRef.Name, view.MaxName),
		Actuation: excerpt.Of(string(cmp.Or(a.Spec.Actuation, v1alpha1.ActuationScale)), view.MaxName), Min: 1, Max: a.Spec.MaxReplicas,
		Deletion: explain.Deletion(a),
	}
	if a.Spec.Actuation == v1alpha1.ActuationHPA {
		out.HPA = target.HPAName(a.Name)
	}
	if a.Spec.MinReplicas != nil {
		out.Min = *a.Spec.MinReplicas
	}
	ready := conditionsOf(r)[0]
	out.Ready = ready.Status == "True"
	switch {
	case out.Ready:
	case ready.Reason == reasonNotServing:
		out.Waiting = ready.Message
	default:
		out.Problem = ready.Message
	}
	if r.plan != nil {
		for i := range r.plan.Policy.Signals {
			s := &r.plan.Policy.Signals[i]
			out.Signals = append(out.Signals, view.Signal{Name: s.Name, Unit: s.Unit, Target: s.Target})
		}
	}
	for i := range r.parts {
		if f := r.parts[i].View; f != nil {
			f(&out)
		}
	}
	if d := r.Decision; d != nil {
		for i, v := range shown.Values(d) {
			if i < len(out.Signals) {
				out.Signals[i].Value = v
			}
		}
		decision := shown.Decision(d)
		out.Decision, out.Leaving = &decision, d.Leaving
	}
	return out
}

// find returns the workload of a GPUAutoscaler; nil: there is none.
func (c *Controller) find(namespace, name string) *workload {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.workloads[types.NamespacedName{Namespace: namespace, Name: name}]
}

// History returns the recent decisions of one workload.
func (c *Controller) History(namespace, name string) (view.History, bool) {
	w := c.find(namespace, name)
	if w == nil {
		return view.History{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return view.History{Points: w.history.List()}, true
}

// Workload returns one workload in detail, without the decisions that have changed it.
func (c *Controller) Workload(namespace, name string) (out view.WorkloadDetail, ok bool) {
	w := c.find(namespace, name)
	if w == nil {
		return out, false
	}
	out.Time, out.MaxAge = time.Now(), c.cfg.MaxAge
	w.mu.Lock()
	out.Workload, out.Conditions, out.Spans = w.shown, shown.Conditions(w.metered.Conditions), w.spans.List()
	if d := out.Workload.Decision; d != nil {
		x := *d
		x.Inputs = w.inputs
		out.Workload.Decision = &x
	}
	w.mu.Unlock()
	if d := out.Workload.Decision; d != nil && d.Starting > 0 {
		out.Workload.StartingSince = c.startingSince(w)
	}
	out.Changes, _ = c.asked.Changes(w.object.Load())
	return out, true
}

// Device returns one device of a node in detail.
func (c *Controller) Device(node, uuid string) (view.Device, bool) {
	return shown.Device(c.deps.Store, node, uuid, c.deps.Pods, time.Now(), c.cfg.MaxAge)
}

// DesiredReplicas is what a GPUAutoscaler decided last.
type DesiredReplicas struct {
	Replicas int32
	At       time.Time
}

// DesiredReplicas returns the last decision of a GPUAutoscaler. The error is
// usage.ErrUnknownWorkload if there is no such GPUAutoscaler, and usage.ErrNoValue, with
// the reason, while it makes no decisions. With actuation: HPA it is the leader's decision,
// whichever replica is asked.
func (c *Controller) DesiredReplicas(namespace, name string) (DesiredReplicas, error) {
	w := c.find(namespace, name)
	if w == nil {
		return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s does not exist", usage.ErrUnknownWorkload, namespace, name)
	}
	if a := w.object.Load(); a.Spec.Actuation == v1alpha1.ActuationHPA && !c.deps.Leading() {
		if s := &a.Status; s.DesiredReplicas != nil && s.LastDecision != nil && time.Since(s.LastDecision.Time.Time) < 2*maxStatusInterval {
			return DesiredReplicas{*s.DesiredReplicas, s.LastDecision.Time.Time}, nil
		}
		return DesiredReplicas{}, fmt.Errorf("%w: the leader's status of GPUAutoscaler %s/%s has no decision", usage.ErrNoValue, namespace, name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.metered.Counts.OK {
		return DesiredReplicas{w.metered.Counts.Desired, w.metered.Counts.At}, nil
	}
	return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s makes no decision now%s", usage.ErrNoValue, namespace, name, w.obstacle())
}

// obstacle returns the reason why there is no decision, from the conditions. w.mu is
// held.
func (w *published) obstacle() string {
	for i := range w.metered.Conditions {
		if c := &w.metered.Conditions[i]; c.Status == metav1.ConditionFalse {
			return ": " + c.Message
		}
	}
	return ""
}

// AutoscalersOf returns the names of a namespace's GPUAutoscalers, sorted.
func (c *Controller) AutoscalersOf(namespace string) (out []string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for key := range c.workloads {
		if key.Namespace == namespace {
			out = append(out, key.Name)
		}
	}
	slices.Sort(out)
	return out
}
