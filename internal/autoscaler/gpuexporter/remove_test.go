// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// Remove waits for the Keeper's labels, and for nobody else's.
func TestRemoveWaitsForLabels(t *testing.T) {
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), gpuNode("ours", nil), gpuNode("theirs", map[string]string{labelKey: "true"}))
	w.pass()
	label := func(node string) string {
		t.Helper()
		var n corev1.Node
		w.get(&n, "", node)
		return n.Labels[labelKey]
	}
	if label("ours") != "true" {
		t.Fatal("the Keeper has not labelled the node")
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	err := Remove(short, w.client, w.client, "default")
	if !errors.Is(err, ErrLabelsLeft) || !strings.Contains(err.Error(), "of 1 nodes: ours") {
		t.Errorf("without a Keeper: %v, want ErrLabelsLeft of the node ours", err)
	}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "default"}, &v1alpha1.GPUExporter{}); !apierrors.IsNotFound(err) {
		t.Errorf("the GPUExporter: %v, want that there is none", err)
	}
	w.pass()
	if err := Remove(t.Context(), w.client, w.client, "default"); err != nil {
		t.Errorf("after the Keeper's pass: %v", err)
	}
	if label("ours") != "" || label("theirs") != "true" {
		t.Errorf("labels %q and %q, want none and somebody else's", label("ours"), label("theirs"))
	}
}

// Other GPUExporters need the labels.
func TestRemoveLeavesLabelsToOthers(t *testing.T) {
	other := newExporter(v1alpha1.GPUExporterSpec{})
	other.Name = "other"
	w := newWorld(t, newExporter(v1alpha1.GPUExporterSpec{}), other, gpuNode("n", nil))
	w.pass()
	if err := Remove(t.Context(), w.client, w.client, "default"); err != nil {
		t.Error(err)
	}
	var left v1alpha1.GPUExporterList
	if err := w.client.List(t.Context(), &left); err != nil || len(left.Items) != 1 || left.Items[0].Name != "other" {
		t.Errorf("GPUExporters %v (%v), want the other one", left.Items, err)
	}
}
