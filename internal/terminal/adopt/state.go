// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// API is a client of the API server. A PATCH is a merge patch.
type API interface {
	Send(ctx context.Context, method string, query url.Values, body, into any, path ...string) error
}

// refusal is an error that a repetition does not remove.
type refusal struct{ error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// Unwrap implements the interface of package errors.
func (r refusal) Unwrap() error { return r.error }

// passing is an error that a repetition removes, whatever the status of the request.
type passing struct{ error }

// Unwrap implements the interface of package errors.
func (p passing) Unwrap() error { return p.error }

// objects are a GPUAutoscaler, and the object of another autoscaler with the same name.
type objects struct {
	api             API
	namespace, name string
}

// state is what the API server has. All that a second run needs is in it.
type state struct {
	ours   *v1alpha1.GPUAutoscaler // nil: none
	raw    *unstructured.Unstructured
	record *record                      // of ours; nil: none
	old    *unstructured.Unstructured   // of the other autoscaler; nil: none
	others []*unstructured.Unstructured // HorizontalPodAutoscalers of the same target, without old
}

func (o *objects) ownPath(name ...string) []string {
	return append([]string{"apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", o.namespace, "gpuautoscalers"}, name...)
}

func (o *objects) oldPath(kind string, name ...string) []string {
	path := []string{"apis", "autoscaling", "v2", "namespaces", o.namespace, "horizontalpodautoscalers"}
	if kind == kindScaledObject {
		path = []string{"apis", "keda.sh", "v1alpha1", "namespaces", o.namespace, "scaledobjects"}
	}
	return append(path, name...)
}

// dryRun asks the API server to check a request, and to store nothing.
func dryRun() url.Values { return url.Values{"dryRun": {metav1.DryRunAll}} }

// observe reads the objects. The kind of the other autoscaler's object is that of the record,
// unless it is given.
func (o *objects) observe(ctx context.Context, kind string) (*state, error) {
	s := &state{}
	u := &unstructured.Unstructured{}
	switch err := o.api.Send(ctx, http.MethodGet, nil, nil, u, o.ownPath(o.name)...); {
	case err == nil:
		a, bad, _ := policy.Decode(u)
		if bad != nil {
			return nil, refuse("GPUAutoscaler %s/%s has a spec that cannot be read: %w", o.namespace, o.name, bad)
		}
		s.ours, s.raw = a, u
		if s.record, err = readRecord(a); err != nil {
			return nil, err
		}
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read GPUAutoscaler %s/%s: %w", o.namespace, o.name, err)
	}
	if s.record != nil && kind == "" {
		kind = s.record.Kind
	}
	err := o.observeOld(ctx, s, cmp.Or(kind, kindHPA))
	if err == nil && kind == "" && s.ours == nil && s.old == nil { // a stopped object is left
		err = o.observeOld(ctx, s, kindScaledObject)
	}
	return s, err
}

func (o *objects) observeOld(ctx context.Context, s *state, kind string) error {
	if kind == kindScaledObject {
		u := &unstructured.Unstructured{}
		switch err := o.api.Send(ctx, http.MethodGet, nil, nil, u, o.oldPath(kind, o.name)...); {
		case err == nil:
			s.old = u
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("read %s %s/%s: %w", kind, o.namespace, o.name, err)
		}
	}
	s.others = nil
	list := &unstructured.UnstructuredList{}
	if err := o.api.Send(ctx, http.MethodGet, nil, nil, list, o.oldPath(kindHPA)...); err != nil {
		return fmt.Errorf("list the HorizontalPodAutoscalers of %s: %w", o.namespace, err)
	}
	for i := range list.Items {
		if u := &list.Items[i]; kind == kindHPA && u.GetName() == o.name {
			s.old = u
		}
	}
	var to v1alpha1.CrossVersionObjectReference
	switch {
	case s.old != nil:
		to = targetOf(s.old)
	case s.ours != nil:
		to = s.ours.Spec.ScaleTargetRef
	}
	for i := range list.Items {
		if u := &list.Items[i]; (s.old == nil || u.GetUID() != s.old.GetUID()) && sameTarget(targetOf(u), to) {
			s.others = append(s.others, u)
		}
	}
	return nil
}

// patch changes a version of an object, and nothing if there is a newer one.
func (o *objects) patch(ctx context.Context, query url.Values, version string, change map[string]any, path []string) error {
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
		change["metadata"] = meta
	}
	meta["resourceVersion"] = version
	return o.api.Send(ctx, http.MethodPatch, query, change, &unstructured.Unstructured{}, path...)
}

// setActuation makes the GPUAutoscaler scale, or advise only.
func (o *objects) setActuation(ctx context.Context, query url.Values, s *state, to v1alpha1.Actuation) error {
	return o.patch(ctx, query, s.ours.ResourceVersion, map[string]any{"spec": map[string]any{"actuation": to}}, o.ownPath(o.name))
}

// setRecord writes the record of the GPUAutoscaler; nil removes it.
func (o *objects) setRecord(ctx context.Context, s *state, r *record) error {
	var value any
	if r != nil {
		text, err := r.encode()
		if err != nil {
			return err
		}
		value = text
	}
	return o.patch(ctx, nil, s.ours.ResourceVersion, map[string]any{"metadata": map[string]any{"annotations": map[string]any{recordAnnotation: value}}}, o.ownPath(o.name))
}

// startOld lets the object of the other autoscaler scale again.
func (o *objects) startOld(ctx context.Context, query url.Values, old *unstructured.Unstructured) error {
	path := o.oldPath(old.GetKind(), o.name)
	if old.GetKind() == kindScaledObject {
		return o.patch(ctx, query, old.GetResourceVersion(), map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{pausedAnnotation: nil, pausedBy: nil},
		}}, path)
	}
	return o.api.Send(ctx, http.MethodPut, query, original(old), &unstructured.Unstructured{}, path...)
}

// stopOld stops the object of the other autoscaler.
func (o *objects) stopOld(ctx context.Context, query url.Values, old *unstructured.Unstructured) error {
	path := o.oldPath(old.GetKind(), o.name)
	if old.GetKind() == kindScaledObject {
		return o.patch(ctx, query, old.GetResourceVersion(), map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{pausedAnnotation: "true", pausedBy: o.name},
		}}, path)
	}
	u, err := stopped(old)
	if err != nil {
		return err
	}
	return o.api.Send(ctx, http.MethodPut, query, u, &unstructured.Unstructured{}, path...)
}

// remove deletes this version of an object. The API server takes the options from the body,
// and then not from the query.
func (o *objects) remove(ctx context.Context, dryRun []string, u *unstructured.Unstructured, path []string) error {
	uid, version := u.GetUID(), u.GetResourceVersion()
	body := &metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}, DryRun: dryRun,
	}
	err := o.api.Send(ctx, http.MethodDelete, nil, body, &map[string]any{}, path...)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// isFinal reports whether a repetition does not remove the error of a request.
func isFinal(err error) bool {
	var r refusal
	var p passing
	switch {
	case errors.As(err, &r):
		return true
	case errors.As(err, &p):
		return false
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusConflict && code != http.StatusTooManyRequests && code != http.StatusRequestTimeout
}
