// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// recordAnnotation of a GPUAutoscaler says from which object it took over, and has the copy
// with which a deleted HorizontalPodAutoscaler is created again.
const recordAnnotation = "gpupilot.dev/adopted"

// The kinds that a GPUAutoscaler can take over from.
const (
	kindHPA          = "HorizontalPodAutoscaler"
	kindScaledObject = "ScaledObject"
)

// record is the value of recordAnnotation. Whoever may write GPUAutoscalers may write it.
type record struct {
	Kind  string `json:"kind"`            // of the object of the same name
	Saved *saved `json:"saved,omitempty"` // of a HorizontalPodAutoscaler
	// Actuation is what a release has ended, and sets again if it has to go back. Empty: Scale.
	Actuation v1alpha1.Actuation `json:"actuation,omitempty"`
}

// saved is what makes a HorizontalPodAutoscaler again.
type saved struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Spec        map[string]any    `json:"spec"`
}

// savedOf copies a HorizontalPodAutoscaler as it was before it was stopped.
func savedOf(u *unstructured.Unstructured) *saved {
	u = original(u)
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	return &saved{Labels: u.GetLabels(), Annotations: u.GetAnnotations(), Spec: spec}
}

// object returns the HorizontalPodAutoscaler, of the metadata of which only these fields are set.
func (s *saved) object(namespace, name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": s.Spec}}
	u.SetGroupVersionKind(hpaKind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(s.Labels)
	u.SetAnnotations(s.Annotations)
	return u
}

func (r *record) encode() (string, error) {
	b, err := json.Marshal(r)
	return string(b), err
}

// readRecord returns the record of a GPUAutoscaler; nil: it has none. The record may have been written by somebody with
// fewer rights than the reader, so a record of anything but this GPUAutoscaler's own target is an error.
func readRecord(a *v1alpha1.GPUAutoscaler) (*record, error) {
	text, ok := a.Annotations[recordAnnotation]
	if !ok {
		return nil, nil
	}
	r := &record{}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	err := d.Decode(r)
	if err == nil && d.More() {
		err = errors.New("it has several values")
	}
	if err == nil {
		err = r.check(a)
	}
	if err != nil {
		return nil, refusal{fmt.Errorf("the annotation %s of GPUAutoscaler %s/%s is not used: %w", recordAnnotation, a.Namespace, a.Name, err)}
	}
	return r, nil
}

func (r *record) check(a *v1alpha1.GPUAutoscaler) error {
	switch {
	case r.Actuation != "" && r.Actuation != v1alpha1.ActuationScale && r.Actuation != v1alpha1.ActuationHPA:
		return fmt.Errorf("actuation %q is not %s or %s", r.Actuation, v1alpha1.ActuationScale, v1alpha1.ActuationHPA)
	case r.Kind != kindHPA && r.Kind != kindScaledObject:
		return fmt.Errorf("kind %q is not %s or %s", r.Kind, kindHPA, kindScaledObject)
	case r.Kind == kindScaledObject && r.Saved != nil:
		return errors.New("a ScaledObject is not saved")
	case r.Kind == kindScaledObject:
		return nil
	case r.Saved == nil || r.Saved.Spec == nil:
		return errors.New("it has no copy of the HorizontalPodAutoscaler")
	}
	if to := targetOf(r.Saved.object(a.Namespace, a.Name)); !sameTarget(to, a.Spec.ScaleTargetRef) {
		return fmt.Errorf("the saved HorizontalPodAutoscaler scales %s %s, the GPUAutoscaler %s %s", to.Kind, to.Name, a.Spec.ScaleTargetRef.Kind, a.Spec.ScaleTargetRef.Name)
	}
	return nil
}

// isName reports whether a text can be the name of an object, and so a part of a path.
func isName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// targetOf returns the scaleTargetRef of an object of either kind, with KEDA's defaults.
func targetOf(u *unstructured.Unstructured) v1alpha1.CrossVersionObjectReference {
	get := func(field string) string {
		s, _, _ := unstructured.NestedString(u.Object, "spec", "scaleTargetRef", field)
		return s
	}
	ref := v1alpha1.CrossVersionObjectReference{APIVersion: get("apiVersion"), Kind: get("kind"), Name: get("name")}
	if ref.Kind == "" && u.GetKind() == kindScaledObject {
		ref.Kind = "Deployment"
	}
	return ref
}

// sameTarget reports whether two references are of one object, whatever the version of its API.
func sameTarget(a, b v1alpha1.CrossVersionObjectReference) bool {
	group := func(r v1alpha1.CrossVersionObjectReference) string {
		if r.APIVersion == "" && slices.Contains([]string{"deployment", "statefulset"}, strings.ToLower(r.Kind)) {
			return "apps"
		}
		gv, _ := schema.ParseGroupVersion(r.APIVersion)
		return gv.Group
	}
	return a.Name == b.Name && strings.EqualFold(a.Kind, b.Kind) && group(a) == group(b)
}

// differences lists where two values of JSON differ, such as
// "spec.maxReplicas is 1000, not 6".
func differences(path string, is, want any) (out []string) {
	a, ok := is.(map[string]any)
	b, ok2 := want.(map[string]any)
	if !ok || !ok2 {
		if x, y := text(is), text(want); x != y {
			return []string{fmt.Sprintf("%s is %s, not %s", path, x, y)}
		}
		return nil
	}
	keys := map[string]bool{}
	for _, m := range []map[string]any{a, b} {
		for k := range m {
			keys[k] = true
		}
	}
	for _, k := range sorted(keys) {
		out = append(out, differences(path+"."+k, a[k], b[k])...)
	}
	return out
}

func sorted(keys map[string]bool) []string {
	out := make([]string, 0, len(keys))
	for k := range keys {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// text returns a value as JSON; nothing for none.
func text(v any) string {
	if v == nil {
		return "not set"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}
