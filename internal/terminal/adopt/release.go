// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// release hands a workload back to the object of another autoscaler:
//
//	ours writes → ours advises → the controller has seen that → old is made again, or starts again
type release struct {
	objects
	deletes    bool   // the GPUAutoscaler
	force      bool   // go on although the controller does not confirm
	keepRecord bool   // stop once old scales again
	checked    bool   // the API server would accept the old object
	ownHPA     string // of the GPUAutoscaler, if it has one
	done       bool   // nothing is left from which that can be seen
}

// plan returns the steps that are left.
func (r *release) plan(ctx context.Context) ([]step, error) {
	s, err := r.observe(ctx, "")
	if err != nil {
		return nil, err
	}
	if r.done && s.ours == nil {
		return nil, nil
	}
	if s.ours != nil && s.ours.Status.HPA != nil {
		r.ownHPA = s.ours.Status.HPA.Name
	}
	if err := r.check(ctx, s); err != nil {
		return nil, err
	}
	var steps []step
	if s.ours != nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise {
		steps = append(steps, step{text: fmt.Sprintf("set actuation: Advise of GPUAutoscaler %s/%s", r.namespace, r.name), do: func(ctx context.Context) error {
			return r.advise(ctx, s)
		}})
	}
	if hasOld := s.old != nil && !isStopped(s.old); !hasOld && (s.record != nil || s.ours == nil) {
		if missing := r.notConfirmed(s); missing != "" {
			steps = append(steps, step{text: "wait until the controller has seen that it no longer scales", missing: missing})
		}
		steps = append(steps, r.giveBack(s))
	}
	if s.ours == nil || r.keepRecord {
		return steps, nil
	}
	return append(steps, r.finish(s)...), nil
}

// advise ends what the GPUAutoscaler sets, and keeps how it did so.
func (r *release) advise(ctx context.Context, s *state) error {
	if s.record == nil || s.ours.Spec.Actuation != v1alpha1.ActuationHPA {
		return r.setActuation(ctx, nil, s, v1alpha1.ActuationAdvise)
	}
	kept := *s.record
	kept.Actuation = s.ours.Spec.Actuation
	text, err := kept.encode()
	if err != nil {
		return err
	}
	return r.patch(ctx, nil, s.ours.ResourceVersion, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{recordAnnotation: text}},
		"spec":     map[string]any{"actuation": v1alpha1.ActuationAdvise},
	}, r.ownPath(r.name))
}

// check refuses what cannot be handed back.
func (r *release) check(ctx context.Context, s *state) error {
	name := r.namespace + "/" + r.name
	switch {
	case s.ours == nil && (s.old == nil || !isStopped(s.old)):
		return refuse("GPUAutoscaler %s not found", name)
	case s.ours == nil:
		return nil
	case s.record == nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise:
		return refuse("GPUAutoscaler %s has no annotation %s: it was not made by gpupilot adopt", name, recordAnnotation)
	case s.record == nil:
		s.old = nil // whatever has its name is not its business
		return nil
	case s.old == nil && s.record.Kind == kindScaledObject:
		return refuse("the ScaledObject %s/%s no longer exists, and GPUPilot has no copy: apply it with the annotation %s, set actuation: Advise, and remove the annotation",
			r.namespace, r.name, pausedAnnotation+`: "true"`)
	case s.old != nil && !sameTarget(targetOf(s.old), s.ours.Spec.ScaleTargetRef):
		return refuse("the %s %s scales another target than GPUAutoscaler %s", s.record.Kind, r.name, name)
	case s.old != nil && s.record.Kind == kindScaledObject && !isStopped(s.old) && isPaused(s.old):
		return refuse("the ScaledObject %s/%s is paused, but not by gpupilot adopt: remove %s to let KEDA scale", r.namespace, r.name, pausedAnnotation)
	}
	if s.old != nil && !isStopped(s.old) {
		return nil
	}
	if err := r.checkReplicas(s); err != nil && s.ours.Spec.Actuation != v1alpha1.ActuationAdvise {
		return err
	}
	return r.checkOld(ctx, s)
}

// checkReplicas refuses a number of replicas that the other autoscaler would change at once.
func (r *release) checkReplicas(s *state) error {
	n := int64(s.ours.Status.CurrentReplicas)
	most := int64(100) // KEDA's default
	if s.record.Kind == kindHPA {
		if n == 0 && s.ours.Spec.MinReplicas != nil && *s.ours.Spec.MinReplicas == 0 {
			return refuse("%s/%s is scaled to 0 replicas, which a new HorizontalPodAutoscaler takes for switched off: hold 1 replica first (gpupilot hold %[1]s/%[2]s --min-replicas 1)", r.namespace, r.name)
		}
		most = integer(s.record.Saved.Spec["maxReplicas"], most)
	} else if v, ok, _ := unstructured.NestedFieldNoCopy(s.old.Object, "spec", "maxReplicaCount"); ok {
		most = integer(v, most)
	}
	if n > most {
		return refuse("there are %d replicas, and the maximum of the %s %s is %d: it would remove %d at once. Set maxReplicas of the GPUAutoscaler to %[4]d first",
			n, s.record.Kind, r.name, most, n-most)
	}
	return nil
}

// integer returns a number of JSON, which is decoded in two ways.
func integer(v any, otherwise int64) int64 {
	switch x := v.(type) {
	case int64:
		return x
	case float64:
		return int64(x)
	}
	return otherwise
}

// checkOld asks the API server, before the GPUAutoscaler stops, whether it accepts what
// hands back. KEDA's webhook refuses a ScaledObject beside a HorizontalPodAutoscaler of the
// GPUAutoscaler, so that is not asked before.
func (r *release) checkOld(ctx context.Context, s *state) error {
	if r.checked || r.ownHPA != "" && s.record.Kind == kindScaledObject {
		return nil
	}
	if err := r.restore(ctx, true, s); err != nil {
		return fmt.Errorf("check the %s that will scale again: %w", s.record.Kind, err)
	}
	r.checked = true
	return nil
}

// restore makes the other autoscaler's object again, or starts it.
func (r *release) restore(ctx context.Context, check bool, s *state) error {
	query := dryRun()
	if !check {
		query.Del("dryRun")
	}
	if s.old != nil {
		err := r.startOld(ctx, query, s.old)
		if err != nil && r.ownHPA != "" && strings.Contains(err.Error(), r.ownHPA) {
			return passing{err} // the webhook's cache has the deleted HorizontalPodAutoscaler
		}
		return err
	}
	query.Set("fieldValidation", "Strict")
	want := s.record.Saved.object(r.namespace, r.name)
	return r.api.Send(ctx, http.MethodPost, query, want, &unstructured.Unstructured{}, r.oldPath(kindHPA)...)
}

// notConfirmed says why the controller may still write. A pass that began before the change
// has ended when the status is of the new generation.
func (r *release) notConfirmed(s *state) string {
	switch {
	case s.ours == nil || r.force:
		return ""
	case s.ours.Spec.Actuation != v1alpha1.ActuationAdvise:
		return "it scales"
	case s.ours.Status.ObservedGeneration < s.ours.Generation:
		return "the status of the GPUAutoscaler is of an older spec. Does the controller run? --force goes on if it does not"
	case s.ours.Status.HPA != nil:
		return "its HorizontalPodAutoscaler " + s.ours.Status.HPA.Name + " is not deleted yet"
	}
	return ""
}

// giveBack is the step that lets the other autoscaler scale.
func (r *release) giveBack(s *state) step {
	restore := func(ctx context.Context) error {
		err := r.restore(ctx, false, s)
		r.done = err == nil && s.ours == nil
		return err
	}
	wasScaling := s.old == nil || s.old.GetKind() == kindScaledObject
	switch {
	case s.ours != nil && wasScaling && !r.force && r.checkReplicas(s) != nil:
		was := cmp.Or(s.record.Actuation, v1alpha1.ActuationScale)
		return step{text: fmt.Sprintf("set actuation: %s again", was), do: func(ctx context.Context) error {
			return errors.Join(r.setActuation(ctx, nil, s, was), r.checkReplicas(s))
		}}
	case s.old == nil:
		return step{text: "create the HorizontalPodAutoscaler " + r.name + " as it was saved", do: restore}
	case s.old.GetKind() == kindScaledObject:
		return step{text: "remove the annotation " + pausedAnnotation + " of the ScaledObject " + r.name, do: restore}
	}
	return step{text: "give the HorizontalPodAutoscaler " + r.name + " its metrics and its behavior back", do: restore}
}

// finish ends what the GPUAutoscaler has to do with the other object.
func (r *release) finish(s *state) []step {
	name := r.namespace + "/" + r.name
	if r.deletes {
		return []step{{text: "delete the GPUAutoscaler " + name, do: func(ctx context.Context) error {
			err := r.remove(ctx, nil, s.raw, r.ownPath(r.name))
			r.done = err == nil
			return err
		}}}
	}
	if s.record == nil {
		return nil
	}
	return []step{{text: "remove the annotation " + recordAnnotation + " of GPUAutoscaler " + name + ", which stays in advice mode", do: func(ctx context.Context) error {
		return r.setRecord(ctx, s, nil)
	}}}
}
