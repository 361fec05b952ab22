// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Converted is the equivalent of an object of another autoscaler.
type Converted struct {
	Object *v1alpha1.GPUAutoscaler
	Text   string // YAML, with what differs as comments
	// Guessed are the metrics whose series no file of prometheus-adapter told.
	Guessed []string
}

// Convert translates an object, given as JSON.
type Convert func(kind string, object []byte) (Converted, error)

// settle is how long a ScaledObject's HorizontalPodAutoscaler must be gone before another
// autoscaler writes: a sync that began before its deletion may still write. It is one
// sync period of the HorizontalPodAutoscaler by default.
const settle = 15 * time.Second

// adoption hands a workload over from an object of another autoscaler to a GPUAutoscaler.
// Each step leaves at most one of them that writes replicas:
//
//	old writes → old is stopped → its controller has seen that → old is deleted, or stays
//	paused → ours writes
type adoption struct {
	objects
	kind           string
	convert        Convert
	keepSpec       bool // take the GPUAutoscaler that exists as it is
	allowScaleDown bool
	converted      Converted
	compared       string // the object that ours was compared with
	mayHandOver    bool   // the API server would accept the requests of the hand-over
	created        bool   // this run created the GPUAutoscaler
	seen           *metav1.MicroTime
	notedFirst     bool
	goneSince      time.Time // of a ScaledObject's HorizontalPodAutoscaler
}

// plan returns the steps that are left.
func (a *adoption) plan(ctx context.Context) ([]step, error) {
	s, err := a.observe(ctx, a.kind)
	if err != nil {
		return nil, err
	}
	if err := a.check(ctx, s); err != nil {
		return nil, err
	}
	a.noteFirst(s)
	if err := a.lookAtGuesses(s); err != nil {
		return nil, err
	}
	steps := a.prepare(s)
	if s.old != nil && (a.kind == kindHPA || !isStopped(s.old) || s.ours == nil || s.ours.Spec.Actuation == v1alpha1.ActuationAdvise) {
		steps = append(steps, a.handOver(s)...)
	}
	return append(steps, a.takeOver(s)...), nil
}

// check refuses what cannot be adopted.
func (a *adoption) check(ctx context.Context, s *state) error {
	name := a.namespace + "/" + a.name
	switch {
	case s.old == nil && s.record == nil:
		return refuse("%s %s/%s not found", a.kind, a.namespace, a.name)
	case s.record != nil && s.record.Kind != a.kind:
		return refuse("GPUAutoscaler %s took over from a %s: gpupilot release %[1]s first", name, s.record.Kind)
	case s.ours != nil && s.ours.DeletionTimestamp != nil:
		return refuse("GPUAutoscaler %s is being deleted", name)
	case s.ours != nil && s.record == nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise:
		return refuse("GPUAutoscaler %s exists, and scales: set its actuation to Advise first", name)
	}
	if s.old == nil {
		return nil // handed over
	}
	if err := a.checkOld(s); err != nil {
		return err
	}
	b, err := json.Marshal(original(s.old))
	if err != nil {
		return err
	}
	if a.converted, err = a.convert(a.kind, b); err != nil {
		return refusal{err}
	}
	if s.ours != nil && !sameTarget(s.ours.Spec.ScaleTargetRef, targetOf(s.old)) {
		to := targetOf(s.old)
		return refuse("GPUAutoscaler %s scales %s %s, the %s %s %s", name, s.ours.Spec.ScaleTargetRef.Kind, s.ours.Spec.ScaleTargetRef.Name, a.kind, to.Kind, to.Name)
	}
	return a.compare(ctx, s)
}

// checkOld refuses an object that would come back, or that cannot be stopped.
func (a *adoption) checkOld(s *state) error {
	old := s.old
	name := fmt.Sprintf("%s %s/%s", a.kind, a.namespace, a.name)
	if owners := old.GetOwnerReferences(); len(owners) > 0 {
		return refuse("%s belongs to %s %s, which would make it again: change or adopt that", name, owners[0].Kind, owners[0].Name)
	}
	if old.GetDeletionTimestamp() != nil {
		return refuse("%s is being deleted", name)
	}
	if n := old.GetFinalizers(); a.kind == kindHPA && len(n) > 0 {
		return refuse("%s has the finalizer %s, which would delay its deletion", name, n[0])
	}
	_, holds := old.GetAnnotations()[pausedReplicasAnnotation]
	if a.kind == kindScaledObject && (holds || isPaused(old) && !isStopped(old)) {
		return refuse("%s is paused (%s): KEDA does not scale it. Remove the annotation first, or apply what gpupilot migrate prints", name, pausedAnnotation)
	}
	for _, other := range s.others {
		if a.kind == kindScaledObject && isOwned(other, old) {
			continue
		}
		return refuse("the HorizontalPodAutoscaler %s scales the same target: delete one of the two", other.GetName())
	}
	return nil
}

// isOwned reports whether an object belongs to another one.
func isOwned(u, owner *unstructured.Unstructured) bool {
	for _, o := range u.GetOwnerReferences() {
		if o.UID == owner.GetUID() {
			return true
		}
	}
	return false
}

// compare has the API server check the equivalent and fill in its defaults, and refuses a
// GPUAutoscaler that exists and differs from it.
func (a *adoption) compare(ctx context.Context, s *state) error {
	own := text(savedOf(s.old).Spec)
	if a.compared == own {
		return nil
	}
	u, err := a.equivalent(nil)
	if err != nil {
		return err
	}
	if s.ours != nil {
		u.SetName("")
		u.SetGenerateName("adopt-")
	}
	with := &unstructured.Unstructured{}
	if err := a.api.Send(ctx, http.MethodPost, dryRun(), u, with, a.ownPath()...); err != nil {
		return fmt.Errorf("check the equivalent of the %s: %w", a.kind, err)
	}
	if s.ours != nil && !a.keepSpec {
		is, _, _ := unstructured.NestedMap(s.raw.Object, "spec")
		want, _, _ := unstructured.NestedMap(with.Object, "spec")
		is["actuation"] = want["actuation"]
		if d := differences("spec", is, want); len(d) > 0 {
			return refuse("GPUAutoscaler %s/%s exists, and is not the equivalent of the %s %s:\n  %s\nChange it, or take it as it is with --keep-spec",
				a.namespace, a.name, a.kind, a.name, strings.Join(d, "\n  "))
		}
	}
	a.compared = own
	return nil
}

// equivalent returns the GPUAutoscaler to create, in advice mode.
func (a *adoption) equivalent(r *record) (*unstructured.Unstructured, error) {
	o := a.converted.Object.DeepCopy()
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUAutoscaler"))
	o.Namespace, o.Name, o.Spec.Actuation = a.namespace, a.name, v1alpha1.ActuationAdvise
	b, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(b); err != nil {
		return nil, err
	}
	delete(u.Object, "status")
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	if r != nil {
		text, err := r.encode()
		if err != nil {
			return nil, err
		}
		setAnnotations(u, map[string]string{recordAnnotation: text})
	}
	return u, nil
}

// noteFirst remembers the last decision at the beginning: only a later one shows that the controller runs.
func (a *adoption) noteFirst(s *state) {
	if a.notedFirst {
		return
	}
	a.notedFirst = true
	if s.ours != nil && s.ours.Status.LastDecision != nil {
		a.seen = &s.ours.Status.LastDecision.Time
	}
}

// newRecord is the record of the object as it is now.
func (a *adoption) newRecord(s *state) *record {
	r := &record{Kind: a.kind}
	if a.kind == kindHPA {
		r.Saved = savedOf(s.old)
	}
	return r
}

// errGuessed is about a metric that was taken for a series of its name, which does not exist.
type errGuessed struct{ error }

// lookAtGuesses refuses a metric that was taken for a series of its name, when the first look of the controller finds no
// series: waiting does not help.
func (a *adoption) lookAtGuesses(s *state) error {
	if len(a.converted.Guessed) == 0 || s.old == nil || isStopped(s.old) || s.ours == nil || a.keepSpec {
		return nil
	}
	c := meta.FindStatusCondition(s.ours.Status.Conditions, v1alpha1.ConditionSignals)
	if c == nil || c.ObservedGeneration < s.ours.Generation || !strings.Contains(c.Message, "no series matches") {
		return nil
	}
	return refusal{errGuessed{fmt.Errorf("no file says what %s is, so it was taken for a series of its name, and there is none (%s). Give prometheus-adapter's file, which has the query behind it: "+
		"--adapter-config FILE, such as of kubectl get configmap -n monitoring adapter-config -o yaml", strings.Join(a.converted.Guessed, ", "), c.Message)}}
}

// prepare are the steps until there is a GPUAutoscaler that advises well.
func (a *adoption) prepare(s *state) (steps []step) {
	name := a.namespace + "/" + a.name
	switch {
	case s.old == nil:
		return nil
	case s.ours == nil:
		steps = append(steps, step{text: "create the GPUAutoscaler " + name + " with actuation: Advise", do: func(ctx context.Context) error {
			u, err := a.equivalent(a.newRecord(s))
			if err != nil {
				return err
			}
			err = a.api.Send(ctx, http.MethodPost, nil, u, &unstructured.Unstructured{}, a.ownPath()...)
			a.created = a.created || err == nil
			return err
		}})
	case s.record == nil:
		steps = append(steps, step{text: "note in the annotation " + recordAnnotation + " of GPUAutoscaler " + name + " from what it takes over", do: func(ctx context.Context) error {
			return a.setRecord(ctx, s, a.newRecord(s))
		}})
	case s.ours.Spec.Actuation != v1alpha1.ActuationAdvise && (a.kind == kindHPA || !isStopped(s.old)):
		steps = append(steps, step{text: "set actuation: Advise, because the " + a.kind + " is there again", do: func(ctx context.Context) error {
			return a.setActuation(ctx, nil, s, v1alpha1.ActuationAdvise)
		}})
	}
	missing := a.notReady(s)
	if missing == "" || isStopped(s.old) {
		return steps
	}
	text := "wait until it is Ready and asks for no fewer replicas than there are"
	if a.allowScaleDown {
		text = "wait until it is Ready"
	}
	return append(steps, step{text: text, missing: missing})
}

// notReady says why the GPUAutoscaler cannot take over yet.
func (a *adoption) notReady(s *state) string {
	if s.ours == nil {
		return "it does not exist"
	}
	st := &s.ours.Status
	ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
	switch {
	case ready == nil || st.LastDecision == nil && ready.Status == metav1.ConditionTrue:
		return "the controller has not decided yet. Does it run?"
	case ready.ObservedGeneration < s.ours.Generation:
		return "the controller has not seen the spec yet"
	case ready.Status != metav1.ConditionTrue:
		return fmt.Sprintf("Ready is %s, %s: %s", ready.Status, ready.Reason, ready.Message)
	case a.seen != nil && st.LastDecision.Time.Equal(a.seen):
		return "no decision since this command began. Does the controller run?"
	case st.DesiredReplicas == nil:
		return "it has no number of replicas"
	case *st.DesiredReplicas < st.CurrentReplicas && !a.allowScaleDown:
		return fmt.Sprintf("it would set %d instead of %d replicas (gpupilot explain %s/%s says why); --allow-scale-down hands over nevertheless",
			*st.DesiredReplicas, st.CurrentReplicas, a.namespace, a.name)
	}
	return ""
}

// handOver are the steps that stop the other autoscaler for good.
func (a *adoption) handOver(s *state) (steps []step) {
	saves := a.kind == kindHPA && s.record != nil && text(s.record.Saved) != text(savedOf(s.old))
	if saves {
		steps = append(steps, step{text: "save the HorizontalPodAutoscaler, which has changed, in the annotation " + recordAnnotation, do: func(ctx context.Context) error {
			return a.setRecord(ctx, s, a.newRecord(s))
		}})
	}
	if !isStopped(s.old) {
		text := "stop the HorizontalPodAutoscaler " + a.name + ": a metric that nobody serves, and selectPolicy: Disabled in both directions"
		if a.kind == kindScaledObject {
			text = "pause the ScaledObject " + a.name + " with the annotation " + pausedAnnotation
		}
		steps = append(steps, step{text: text, do: func(ctx context.Context) error {
			if err := a.checkHandOver(ctx, s); err != nil {
				return err
			}
			return a.stopOld(ctx, nil, s.old)
		}})
	}
	if missing := a.notStopped(s); missing != "" {
		text := "wait until kube-controller-manager has seen that"
		if a.kind == kindScaledObject {
			text = fmt.Sprintf("wait until KEDA has deleted its HorizontalPodAutoscaler, and %v more for a sync of it that runs", settle)
		}
		steps = append(steps, step{text: text, missing: missing})
	}
	if a.kind == kindHPA {
		steps = append(steps, step{text: "delete the HorizontalPodAutoscaler " + a.name + ", which leaves the replicas as they are", do: func(ctx context.Context) error {
			return a.remove(ctx, nil, s.old, a.oldPath(kindHPA, a.name))
		}})
	}
	return steps
}

// checkHandOver asks the API server, before anything is stopped, whether it accepts what follows.
func (a *adoption) checkHandOver(ctx context.Context, s *state) error {
	if a.mayHandOver {
		return nil
	}
	if a.kind == kindHPA {
		if n := s.ours.Status.CurrentReplicas; n == 0 {
			return refuse("%s %s has 0 replicas, at which no HorizontalPodAutoscaler shows that it was stopped: set 1 or more first", targetOf(s.old).Kind, targetOf(s.old).Name)
		}
		if err := a.remove(ctx, []string{metav1.DryRunAll}, s.old, a.oldPath(kindHPA, a.name)); err != nil {
			return fmt.Errorf("delete it later: %w", err)
		}
	}
	if err := a.setActuation(ctx, dryRun(), s, v1alpha1.ActuationScale); err != nil {
		return fmt.Errorf("set actuation: Scale later: %w", err)
	}
	a.mayHandOver = true
	return nil
}

// checkRights asks the API server whether it would accept the requests of the hand-over, as far as
// the objects exist.
func (a *adoption) checkRights(ctx context.Context) error {
	s, err := a.observe(ctx, a.kind)
	if err != nil || s.old == nil || isStopped(s.old) {
		return err
	}
	if err := a.stopOld(ctx, dryRun(), s.old); err != nil {
		return fmt.Errorf("stop the %s: %w", a.kind, err)
	}
	if s.ours != nil {
		return a.checkHandOver(ctx, s)
	}
	if a.kind != kindHPA {
		return nil
	}
	return a.remove(ctx, []string{metav1.DryRunAll}, s.old, a.oldPath(kindHPA, a.name))
}

// notStopped says why the other autoscaler may still write.
func (a *adoption) notStopped(s *state) string {
	if !isStopped(s.old) {
		return "it is not stopped"
	}
	if missing := hasSeenStop(s.old); missing != "" {
		return missing
	}
	if a.kind == kindHPA {
		return ""
	}
	if len(s.others) > 0 {
		a.goneSince = time.Time{}
		return "KEDA has not deleted the HorizontalPodAutoscaler " + s.others[0].GetName()
	}
	if a.goneSince.IsZero() {
		a.goneSince = time.Now()
	}
	if time.Since(a.goneSince) < settle {
		return "a sync of its HorizontalPodAutoscaler may still run"
	}
	return ""
}

// takeOver are the steps that make the GPUAutoscaler write.
func (a *adoption) takeOver(s *state) (steps []step) {
	scales := s.ours != nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise && (s.old == nil || a.kind == kindScaledObject && isStopped(s.old))
	if !scales {
		steps = append(steps, step{text: "set actuation: Scale", do: func(ctx context.Context) error {
			return a.setActuation(ctx, nil, s, v1alpha1.ActuationScale)
		}})
	}
	if missing := a.notScaling(s); missing != "" || !scales {
		steps = append(steps, step{text: "wait until the controller scales", missing: missing})
	}
	return steps
}

// notScaling says why the GPUAutoscaler does not set replicas.
func (a *adoption) notScaling(s *state) string {
	if s.ours == nil {
		return "it does not exist"
	}
	c := meta.FindStatusCondition(s.ours.Status.Conditions, v1alpha1.ConditionAbleToScale)
	switch {
	case c == nil || c.ObservedGeneration < s.ours.Generation:
		return "the controller has not seen the spec yet"
	case c.Status != metav1.ConditionTrue:
		return fmt.Sprintf("AbleToScale is %s, %s: %s", c.Status, c.Reason, c.Message)
	}
	return ""
}

// run hands over. What fails before the GPUAutoscaler scales is undone, so that the other
// autoscaler scales again.
func (a *adoption) run(ctx context.Context, r *runner) error {
	err := r.run(ctx, a.plan)
	if err == nil || ctx.Err() != nil {
		return err
	}
	s, lookErr := a.observe(ctx, a.kind)
	if lookErr != nil {
		return errors.Join(err, lookErr)
	}
	if s.ours != nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise {
		return fmt.Errorf("%w\nThe %s no longer scales: gpupilot release %s/%s goes back", err, a.kind, a.namespace, a.name)
	}
	if s.old != nil && !isStopped(s.old) {
		return fmt.Errorf("%w\nThe %s %s still scales%s", err, a.kind, a.name, a.discard(ctx, err, s))
	}
	back := &release{objects: a.objects, keepRecord: true}
	r.print("going back\n")
	if backErr := r.run(ctx, back.plan); backErr != nil {
		return errors.Join(err, fmt.Errorf("go back: %w; gpupilot release %s/%s tries again", backErr, a.namespace, a.name))
	}
	return fmt.Errorf("%w\nThe %s %s scales again", err, a.kind, a.name)
}

// discard deletes the GPUAutoscaler that this run created on a guess, and says so.
func (a *adoption) discard(ctx context.Context, err error, s *state) string {
	if _, guessed := errors.AsType[errGuessed](err); !guessed || s.ours == nil || !a.created {
		return ""
	}
	uid := s.ours.UID
	body := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, Preconditions: &metav1.Preconditions{UID: &uid}}
	if err := a.api.Send(ctx, http.MethodDelete, nil, body, &map[string]any{}, a.ownPath(a.name)...); err != nil {
		return fmt.Sprintf("; the GPUAutoscaler stays in advice mode, delete it: %v", err)
	}
	return ", and the GPUAutoscaler is deleted again"
}
