// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/test/stack"
)

// faultSpace is the namespace of the subjects.
const faultSpace = "faults"

// restorer is the writer of what a restore puts back.
const restorer = "restorer"

// auditor watches the replicas and the pods of subjects, and notes what no wish since the last convergence allows.
type auditor struct {
	mu       sync.Mutex
	subjects map[string]*subject
	slack    time.Duration   // by how much clocks may be wrong
	lossy    bool            // pods may go that nobody has scaled down
	ready    map[string]bool // pods, by name
	events   int
}

func newAuditor(t *testing.T) *auditor {
	a := &auditor{subjects: map[string]*subject{}, ready: map[string]bool{}}
	rig.Follow(t, &appsv1.DeploymentList{}, func(e watch.Event) {
		if d, ok := e.Object.(*appsv1.Deployment); ok && e.Type != watch.Deleted {
			a.scaled(d)
		}
	}, client.InNamespace(faultSpace))
	rig.Follow(t, &corev1.PodList{}, func(e watch.Event) {
		if p, ok := e.Object.(*corev1.Pod); ok {
			a.changed(p, e.Type == watch.Deleted)
		}
	}, client.InNamespace(faultSpace))
	rig.Follow(t, &v1alpha1.GPUAutoscalerList{}, func(e watch.Event) {
		if o, ok := e.Object.(*v1alpha1.GPUAutoscaler); ok && e.Type == watch.Modified {
			a.decided(o)
		}
	}, client.InNamespace(faultSpace))
	return a
}

// decided notes why the replicas change.
func (a *auditor) decided(o *v1alpha1.GPUAutoscaler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := o.Status.LastDecision
	if s := a.subjects[o.Name]; s != nil && d != nil && o.Status.DesiredReplicas != nil && *o.Status.DesiredReplicas != s.desired {
		s.desired = *o.Status.DesiredReplicas
		text := d.Message
		for _, step := range d.Steps {
			text += fmt.Sprintf(" | %s %d → %d: %s", step.Rule, step.Before, step.After, step.Message)
		}
		for _, in := range d.Inputs {
			text += fmt.Sprintf(" | %s %s of %d, %d ms", in.Signal, in.Value, in.Replicas, in.AgeMilliseconds)
		}
		s.did = append(s.did, fmt.Sprintf("%s decided %d of %d serving, %d starting: %s", time.Now().UTC().Format("05.0"), s.desired, o.Status.ServingReplicas, o.Status.StartingReplicas, text))
	}
}

// scaled judges the replicas of a Deployment.
func (a *auditor) scaled(d *appsv1.Deployment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.subjects[d.Name]
	if s == nil || *d.Spec.Replicas == s.replicas || d.DeletionTimestamp != nil {
		return
	}
	a.events++
	n, before := *d.Spec.Replicas, s.replicas
	s.replicas = n
	by := stack.WriterOf(d)
	s.did = append(s.did, fmt.Sprintf("%s %d → %d by %s", time.Now().UTC().Format("05.0"), before, n, by))
	restored := s.restored // a rate counts from where the replicas were, whoever took them away
	if s.restored = by == restorer; s.restored {
		return
	}
	low, high := s.envelope(time.Now(), a.slack, a.lossy)
	if n < low || n > high {
		s.broken = append(s.broken, fmt.Sprintf("%d replicas, and the model allows %d to %d", n, low, high))
	}
	if s.can(steps) && !s.can(overrides) && !s.can(schedules) && s.partner == nil && !restored && before > 0 && n > before+1 {
		s.broken = append(s.broken, fmt.Sprintf("%d → %d replicas in one step, and the policy allows 1", before, n))
	}
}

// changed judges how many pods serve: what is scaled down is never more than a wish allows.
func (a *auditor) changed(p *corev1.Pod, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.subjects[p.Labels["app"]]
	if s == nil {
		return
	}
	now := !gone && p.DeletionTimestamp == nil && replica.IsReady(p)
	was := a.ready[p.Name]
	if a.ready[p.Name] = now; gone {
		delete(a.ready, p.Name)
	}
	if !was || now || a.lossy || len(s.was) == 0 {
		return
	}
	low, _ := s.envelope(time.Now(), a.slack, a.lossy)
	if n := a.serving(s); n < low {
		s.broken = append(s.broken, fmt.Sprintf("%d pods serve after %s does not, and the model allows %d at least", n, p.Name, low))
	}
}

func (a *auditor) serving(s *subject) (n int32) {
	for name, is := range a.ready {
		if is && strings.HasPrefix(name, s.name+"-") {
			n++
		}
	}
	return n
}

// change notes a new wish, before it is one.
func (a *auditor) change(s *subject, what string, set func(*wish)) wish {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := s.now
	set(&next)
	s.was, s.now, s.did = append(s.was, next), next, append(s.did, time.Now().UTC().Format("05.0 ")+what)
	return next
}

// expect empties the past: from now on, only the present wishes allow replicas.
func (a *auditor) expect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.subjects {
		s.was, s.did = []wish{s.now}, nil
	}
}

// violations are what the auditor has noted, and forgets.
func (a *auditor) violations() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.subjects)) {
		s := a.subjects[name]
		for _, b := range s.broken {
			out = append(out, fmt.Sprintf("%s: %s\n   %s", s, b, strings.Join(s.did, "; ")))
		}
		s.broken = nil
	}
	return out
}

// snapshot is a copy of the subjects' wishes, in an order.
func (a *auditor) sorted() []*subject {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*subject
	for _, name := range slices.Sorted(maps.Keys(a.subjects)) {
		out = append(out, a.subjects[name])
	}
	return out
}

// settled returns an error for the first subject that is not as its wishes ask for.
func (a *auditor) settled(ctx context.Context) error {
	for _, s := range a.sorted() {
		if err := a.isSettled(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (a *auditor) isSettled(ctx context.Context, s *subject) error {
	key := types.NamespacedName{Namespace: faultSpace, Name: s.name}
	var o v1alpha1.GPUAutoscaler
	var d appsv1.Deployment
	var pods corev1.PodList
	if err := rig.Client.Get(ctx, key, &o); err != nil {
		return err
	}
	if err := rig.Client.Get(ctx, key, &d); err != nil {
		return err
	}
	if err := rig.Client.List(ctx, &pods, client.InNamespace(faultSpace), client.MatchingLabels{"app": s.name}); err != nil {
		return err
	}
	a.mu.Lock()
	want, now := s.target(time.Now()), s.now
	a.mu.Unlock()
	st := &o.Status
	message := ""
	if st.LastDecision != nil {
		message = st.LastDecision.Message
	}
	if n := *d.Spec.Replicas; n != want {
		return fmt.Errorf("%d replicas, want %d: %s; %s", n, want, message, notable(&o))
	}
	if st.ObservedGeneration != o.Generation || st.CurrentReplicas != want || st.DesiredReplicas == nil || *st.DesiredReplicas != want ||
		st.ServingReplicas != want || st.DrainingReplicas != 0 {
		return fmt.Errorf("want %d replicas, the status has generation %d of %d, %d current, %v desired, %d serving, %d draining: %s; %s", want,
			st.ObservedGeneration, o.Generation, st.CurrentReplicas, st.DesiredReplicas, st.ServingReplicas, st.DrainingReplicas, message, notable(&o))
	}
	overridden := now.override != nil && time.Now().Before(now.override.Until.Time)
	if meta.IsStatusConditionTrue(st.Conditions, v1alpha1.ConditionOverridden) != overridden {
		return fmt.Errorf("is overridden: %v, want %v; %s", !overridden, overridden, notable(&o))
	}
	// Without a replica there is no value, and no condition that needs one.
	if ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady); want > 0 && (ready == nil || ready.Status != "True") {
		return fmt.Errorf("it is not ready: %s", notable(&o))
	}
	alive := int32(0)
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.DeletionTimestamp != nil {
			continue
		}
		alive++
		if g := replica.Gate(p); !replica.IsReady(p) || g != nil && g.Status != corev1.ConditionTrue {
			return fmt.Errorf("%s is not ready, its gate is %+v", p.Name, g)
		}
	}
	if ds := &d.Status; alive != want || ds.ObservedGeneration < d.Generation || ds.UpdatedReplicas != want || ds.AvailableReplicas != want || ds.Replicas != want {
		return fmt.Errorf("%d pods, %d available, %d of the new version, want %d", alive, ds.AvailableReplicas, ds.UpdatedReplicas, want)
	}
	return nil
}

// notable are the conditions of an object with their messages.
func notable(o *v1alpha1.GPUAutoscaler) string {
	var out []string
	for _, c := range o.Status.Conditions {
		out = append(out, fmt.Sprintf("%s=%s %s (%s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(out, ", ")
}
