// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Decode reads a stored GPUAutoscaler. Each object is decoded alone, so that one
// that does not have the API's types costs nothing but itself.
//
// badSpec says why the spec cannot be read; the object then has its metadata
// only. badStatus names the fields of the status that cannot be read; they are
// left out.
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
		if errs := misshapen(u.Object["spec"], field.NewPath("spec")); len(errs) > 0 {
			badSpec = errs.ToAggregate()
		}
	} else {
		meta["spec"] = u.Object["spec"]
	}
	meta["status"], badStatus = goodStatus(u.Object["status"], with)
	a = &v1alpha1.GPUAutoscaler{}
	if err := decodeInto(meta, a); err != nil { // not even its metadata
		a = &v1alpha1.GPUAutoscaler{}
		a.Namespace, a.Name, a.UID, a.ResourceVersion = u.GetNamespace(), u.GetName(), u.GetUID(), u.GetResourceVersion()
		a.Generation, a.CreationTimestamp, a.DeletionTimestamp = u.GetGeneration(), u.GetCreationTimestamp(), u.GetDeletionTimestamp()
		if badSpec == nil {
			badSpec = err
		}
	}
	return a, badSpec, badStatus
}

// goodStatus are the fields of a status that can be read.
func goodStatus(status any, with func(name string, value any) map[string]any) (good any, bad error) {
	if status == nil {
		return nil, nil
	}
	fields, ok := status.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("status: not an object: %T", status)
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

// decodeInto reads fields as the API server's clients do.
func decodeInto(fields map[string]any, into *v1alpha1.GPUAutoscaler) error {
	u := unstructured.Unstructured{Object: fields}
	b, err := u.MarshalJSON()
	if err != nil {
		return err
	}
	return json.UnmarshalCaseSensitivePreserveInts(b, into)
}
