// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Autoscalers reads the GPUAutoscaler of that name, or all of the namespace.
func (a *API) Autoscalers(ctx context.Context, namespace, name string) ([]Autoscaler, error) {
	path := []string{"apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", namespace, "gpuautoscalers"}
	if name != "" {
		u := &unstructured.Unstructured{}
		if err := a.Do(ctx, http.MethodGet, nil, u, append(path, name)...); err != nil {
			return nil, fmt.Errorf("read GPUAutoscaler %s/%s: %w", namespace, name, err)
		}
		return []Autoscaler{decoded(u)}, nil
	}
	list := &unstructured.UnstructuredList{}
	if err := a.Do(ctx, http.MethodGet, nil, list, path...); err != nil {
		return nil, fmt.Errorf("list GPUAutoscalers of %s: %w", namespace, err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no GPUAutoscaler in namespace %s", namespace)
	}
	out := make([]Autoscaler, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, decoded(&list.Items[i]))
	}
	return out, nil
}

// Autoscaler is a GPUAutoscaler with its decoding errors. Objects are decoded one by one, so
// that a malformed one does not hide the others.
type Autoscaler struct {
	Object            *v1alpha1.GPUAutoscaler
	BadSpec, BadState error
}

func decoded(u *unstructured.Unstructured) Autoscaler {
	a, badSpec, badState := policy.Decode(u)
	return Autoscaler{a, badSpec, badState}
}

// Explain writes the last decision and the decoding errors.
func (s *Autoscaler) Explain(out io.Writer, now time.Time) {
	if s.BadSpec != nil {
		fmt.Fprintf(out, "%s/%s has a spec that cannot be read: %v\n", s.Object.Namespace, s.Object.Name, s.BadSpec)
		return
	}
	if s.BadState != nil {
		fmt.Fprintf(out, "%s/%s has a status that cannot be read: %v\n", s.Object.Namespace, s.Object.Name, s.BadState)
	}
	Write(out, s.Object, now)
}
