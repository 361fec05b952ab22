// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// decode decodes one stored GPUExporter. On an error, the result has the metadata only:
// a CRD of another version may have accepted an invalid spec. A status that cannot be
// decoded is ignored, because it is written again.
func decode(u *unstructured.Unstructured) (*v1alpha1.GPUExporter, error) {
	e := &v1alpha1.GPUExporter{}
	convert := runtime.DefaultUnstructuredConverter.FromUnstructured
	if convert(u.Object, e) == nil {
		return e, nil
	}
	fields := map[string]any{"apiVersion": u.GetAPIVersion(), "kind": u.GetKind(), "metadata": u.Object["metadata"], "spec": u.Object["spec"]}
	e = &v1alpha1.GPUExporter{}
	err := convert(fields, e)
	if err == nil {
		return e, nil
	}
	bare := &v1alpha1.GPUExporter{TypeMeta: metav1.TypeMeta{APIVersion: u.GetAPIVersion(), Kind: u.GetKind()}}
	bare.Name, bare.UID, bare.Generation, bare.DeletionTimestamp = u.GetName(), u.GetUID(), u.GetGeneration(), u.GetDeletionTimestamp()
	return bare, fmt.Errorf("spec: %w", err)
}

func ctxDone(err error) bool { return errors.Is(err, context.Canceled) }
