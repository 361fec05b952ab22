// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// ErrLabelsLeft means that nodes still have labels of a Keeper.
var ErrLabelsLeft = errors.New("the controller has not taken back its label " + labelKey)

// removePoll is the time between two looks at the nodes.
const removePoll = 500 * time.Millisecond

// Remove deletes the GPUExporter with that name, as before an uninstallation, and returns when the Keeper of a running
// controller has taken back its labels of nodes. If other GPUExporters remain, it does not wait: they need the labels. A
// GPUExporter that does not exist is not an error. If ctx ends before, the error wraps ErrLabelsLeft and names nodes.
func Remove(ctx context.Context, live client.Reader, c client.Writer, name string) error {
	e := Kind()
	e.SetName(name)
	err := client.IgnoreNotFound(c.Delete(ctx, e))
	if meta.IsNoMatchError(err) {
		return nil // nobody has made the kind known, so that no Keeper runs
	}
	if err != nil {
		return fmt.Errorf("delete GPUExporter %s: %w", name, err)
	}
	poll := time.NewTicker(removePoll)
	defer poll.Stop()
	for {
		done, err := removed(ctx, live, name)
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}

// removed reports whether nothing is left to wait for; the error says what is.
func removed(ctx context.Context, live client.Reader, name string) (bool, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("GPUExporterList"))
	if err := live.List(ctx, list); err != nil {
		return false, fmt.Errorf("list GPUExporters: %w", err)
	}
	for i := range list.Items {
		if o := &list.Items[i]; o.GetName() != name && o.GetDeletionTimestamp() == nil {
			return true, nil
		}
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := live.List(ctx, nodes); err != nil {
		return false, fmt.Errorf("list nodes: %w", err)
	}
	var left []string
	for i := range nodes.Items {
		if labelledByUs(&nodes.Items[i]) {
			left = append(left, nodes.Items[i].Name)
		}
	}
	if len(left) > 0 {
		return false, fmt.Errorf("%w of %d nodes: %s", ErrLabelsLeft, len(left), excerpt.Of(strings.Join(left, ", "), maxMessage))
	}
	return true, nil
}

// labelledByUs reports whether the node's label is a Keeper's, and not somebody else's.
func labelledByUs(node metav1.Object) bool {
	for _, entry := range node.GetManagedFields() {
		if entry.Manager == FieldManager && entry.FieldsV1 != nil && strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+labelKey+`"`) {
			return true
		}
	}
	return false
}

// removeTimeout bounds Uninstall.
const removeTimeout = time.Minute

// Uninstall is Remove within a minute. Labels that are left are logged, and are not an
// error: an uninstallation goes on.
func Uninstall(ctx context.Context, live client.Reader, c client.Writer, name string, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err := Remove(ctx, live, c, name)
	if errors.Is(err, ErrLabelsLeft) {
		log.Warn("labels are left; to remove them: kubectl label nodes --all "+gpu.NodeLabel+"-", "err", err)
		return nil
	}
	if err == nil {
		log.Info("the GPUExporter is removed", "name", name)
	}
	return err
}
