// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Decode decodes one stored GPUAutoscaler. Objects are decoded one by one, so that
// a malformed object does not affect the others.
//
// badSpec is the reason why the spec cannot be decoded; the result then has only
// the object's metadata. badStatus names the fields of the status that cannot be
// decoded; the result lacks them.
func Decode(u *unstructured.Unstructured) (a *v1alpha1.GPUAutoscaler, badSpec, badStatus error) {
	a = &v1alpha1.GPUAutoscaler{}
	if decodeInto(u.Object, a) == nil {
		return a, nil, nil
	}
	meta := map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": u.Object["metadata"]}
	with := func(name string, value any) map[string]any {
		return map[string]any{"apiVersion": meta["apiVersion"], "kind": meta["kind"], "metadata": meta["metadata"], name: value}
	}
	if err := decodeInto(with("spec", u.Object["spec"]), &v1alpha1.GPUAutoscaler{}); err != nil {
		badSpec = err
		if errs := shapeErrors(u.Object["spec"], field.NewPath("spec")); len(errs) > 0 {
			badSpec = errs.ToAggregate()
		}
	} else {
		meta["spec"] = u.Object["spec"]
	}
	meta["status"], badStatus = decodableStatus(u.Object["status"], with)
	a = &v1alpha1.GPUAutoscaler{}
	if err := decodeInto(meta, a); err != nil { // the metadata is malformed as well
		a = &v1alpha1.GPUAutoscaler{}
		a.Namespace, a.Name, a.UID, a.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
		a.Generation, a.CreationTimestamp, a.DeletionTimestamp = u.GetGeneration(), u.GetCreationTimestamp(), u.GetDeletionTimestamp()
		if badSpec == nil {
			badSpec = err
		}
	}
	return a, badSpec, badStatus
}

// decodableStatus returns the fields of a status that can be decoded, and the
// error of one that cannot.
func decodableStatus(status any, with func(name string, value any) map[string]any) (good any, bad error) {
	if status == nil {
		return nil, nil
	}
	fields, ok := status.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("status is a %T, not an object", status)
	}
	kept := map[string]any{}
	for name, value := range fields {
		if err := decodeInto(with("status", map[string]any{name: value}), &v1alpha1.GPUAutoscaler{}); err != nil {
			bad = fmt.Errorf("status.%s: %w", name, err)
			continue
		}
		kept[name] = value
	}
	return kept, bad
}

// decodeInto decodes fields in the same way as the API server's clients.
func decodeInto(fields map[string]any, into *v1alpha1.GPUAutoscaler) error {
	u := unstructured.Unstructured{Object: fields}
	b, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	return json.UnmarshalCaseSensitivePreserveInts(b, into)
}
