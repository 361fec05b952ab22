// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// errForeign is the error for an object of our name that is not ours. It is not
// changed.
var errForeign = errors.New("the object exists and does not belong to this GPUExporter; delete or rename it, or give the GPUExporter another name")

// apply writes an object by server-side apply. Fields of other managers stay. It does
// not change an object that is not the exporter's.
func (k *Keeper) apply(ctx context.Context, e *v1alpha1.GPUExporter, want *unstructured.Unstructured, options ...client.PatchOption) error {
	have, err := k.get(ctx, want)
	if err != nil {
		return err
	}
	options = append(options, client.FieldOwner(FieldManager))
	switch {
	case have == nil:
		// Not forced: if another client creates the object now, its fields conflict with ours.
	case !owns(e, have):
		return fmt.Errorf("%s %s: %w", want.GetKind(), want.GetName(), errForeign)
	default:
		want = want.DeepCopy()
		want.SetUID(have.GetUID()) // this object, and no other of its name
		options = append(options, client.ForceOwnership)
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", want.GetKind(), want.GetName(), err)
	}
	err = k.deps.Client.Patch(ctx, named(want), client.RawPatch(types.ApplyPatchType, body), options...)
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", want.GetKind(), want.GetName(), err)
	}
	return nil
}

// named returns an object with only the name and kind of another.
func named(of *unstructured.Unstructured) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(of.GroupVersionKind())
	u.SetNamespace(of.GetNamespace())
	u.SetName(of.GetName())
	return u
}

// get reads an object; nil if there is none.
func (k *Keeper) get(ctx context.Context, of *unstructured.Unstructured) (*metav1.PartialObjectMetadata, error) {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(of.GroupVersionKind())
	err := k.deps.Live.Get(ctx, client.ObjectKeyFromObject(of), m)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", of.GetKind(), of.GetName(), err)
	}
	return m, nil
}

// owns reports whether the object belongs to the exporter. An object of an earlier
// GPUExporter of the same name does not: the garbage collector will delete it.
func owns(e *v1alpha1.GPUExporter, o metav1.Object) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.Kind == "GPUExporter" && ref.UID == e.UID
}

// remove deletes the objects that the exporter does not want any more.
func (k *Keeper) remove(ctx context.Context, e *v1alpha1.GPUExporter, wanted []*unstructured.Unstructured) error {
	keep := map[string]bool{}
	for _, u := range wanted {
		keep[u.GetKind()+"/"+u.GetName()] = true
	}
	var all []error
	for _, c := range []struct{ version, kind, name string }{
		{"apps/v1", "DaemonSet", probeObjectName(e)},
		{monitoringVersion, "ServiceMonitor", ObjectName(e)},
		{monitoringVersion, "PodMonitor", ObjectName(e)},
		{monitoringVersion, "PrometheusRule", ObjectName(e)},
	} {
		if keep[c.kind+"/"+c.name] || c.version == monitoringVersion && !k.installed(c.kind) {
			continue
		}
		u := &unstructured.Unstructured{}
		u.SetAPIVersion(c.version)
		u.SetKind(c.kind)
		u.SetNamespace(k.settings.Namespace)
		u.SetName(c.name)
		have, err := k.get(ctx, u)
		if err != nil {
			all = append(all, err)
			continue
		}
		if have == nil || !owns(e, have) || have.GetDeletionTimestamp() != nil {
			continue
		}
		uid := have.GetUID()
		if err := k.deps.Client.Delete(ctx, u, client.Preconditions{UID: &uid}); client.IgnoreNotFound(err) != nil {
			all = append(all, fmt.Errorf("delete %s %s: %w", c.kind, c.name, err))
		}
	}
	return errors.Join(all...)
}

// installed reports whether a kind of the Prometheus Operator is installed.
func (k *Keeper) installed(kind string) bool {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(monitoringVersion)
	u.SetKind(kind)
	return k.deps.Installed(u)
}

// keepAccount creates the ServiceAccount of the agents that use the API server. All
// GPUExporters that need it own it, so that it is deleted with the last of them. An
// account that another client has created is used unchanged.
func (k *Keeper) keepAccount(ctx context.Context, all []*v1alpha1.GPUExporter) {
	u := &unstructured.Unstructured{Object: map[string]any{"automountServiceAccountToken": false}}
	u.SetAPIVersion("v1")
	u.SetKind("ServiceAccount")
	u.SetNamespace(k.settings.Namespace)
	u.SetName(ServiceAccount)
	u.SetLabels(map[string]string{LabelName: AgentName, "app.kubernetes.io/part-of": "gpupilot", "app.kubernetes.io/managed-by": "gpupilot-controller"})
	var owners []metav1.OwnerReference
	for _, e := range all {
		if asksAPIServer(e, k.settings) {
			ref := ownerReference(e)
			ref.Controller = nil // an object has one controller
			owners = append(owners, ref)
		}
	}
	if len(owners) == 0 {
		return
	}
	u.SetOwnerReferences(owners)
	err := func() error {
		have, err := k.get(ctx, u)
		if err != nil {
			return err
		}
		if have != nil && !ownedByExporter(have) {
			return nil
		}
		body, err := json.Marshal(u)
		if err != nil {
			return err
		}
		return k.deps.Client.Patch(ctx, named(u), client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(FieldManager))
	}()
	k.log("account", "the agents' ServiceAccount cannot be written", err)
}

func ownedByExporter(o metav1.Object) bool {
	for _, ref := range o.GetOwnerReferences() {
		if ref.Kind == "GPUExporter" {
			return true
		}
	}
	return false
}

// keepLabels labels the nodes whose GPUs are known only from the node's capacity or a
// probe. It removes the labels when no GPUExporter uses them. It reports whether all
// nodes were updated.
func (k *Keeper) keepLabels(ctx context.Context, all []*v1alpha1.GPUExporter, nodes []corev1.Node) bool {
	wanted, probing := false, map[string]bool{}
	for _, e := range all {
		wanted = wanted || e.Spec.Discovery != v1alpha1.DiscoveryNone
		if probes(e) {
			probing[e.Name] = true
		}
	}
	found := map[string]string{}
	if len(probing) > 0 {
		found = k.probeResults(ctx, probing)
	}
	var failed error
	for i := range nodes {
		n := &nodes[i]
		_, labelled := n.Labels[labelKey]
		var err error
		switch value := found[n.Name]; {
		case !wanted && labelled && !k.cleared[n.Name]:
			if err = k.label(ctx, n.Name, ""); err == nil {
				k.cleared[n.Name] = true
			}
		case !wanted:
		case needsLabel(n):
			err = k.label(ctx, n.Name, "true")
		case value != "" && !labelled && !hasSign(n.Labels):
			err = k.label(ctx, n.Name, value)
		}
		if wanted {
			delete(k.cleared, n.Name)
		}
		if err != nil {
			failed = fmt.Errorf("node %s: %w", n.Name, err)
		}
	}
	k.log("labels", "a node cannot be labelled", failed)
	return failed == nil
}

// label sets the label of a node, or removes ours if value is empty. It does not change
// a value that another client has set.
func (k *Keeper) label(ctx context.Context, node, value string) error {
	labels := map[string]any{}
	if value != "" {
		labels[labelKey] = value
	}
	u := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"labels": labels}}}
	u.SetAPIVersion("v1")
	u.SetKind("Node")
	u.SetName(node)
	body, err := json.Marshal(u)
	if err != nil {
		return err
	}
	err = k.deps.Client.Patch(ctx, named(u), client.RawPatch(types.ApplyPatchType, body), client.FieldOwner(FieldManager))
	if apierrors.IsConflict(err) {
		return nil
	}
	return client.IgnoreNotFound(err)
}
