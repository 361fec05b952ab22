// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"fmt"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Objects holds the ScaledObjects of the API server.
type Objects struct {
	live   client.Reader
	record func(about corev1.ObjectReference, reason string)

	mu sync.RWMutex
	by map[types.NamespacedName]*object
}

// object is a ScaledObject in memory.
type object struct {
	*ScaledObject
	uid      types.UID
	reported string // in the last Event about this version of the object
}

// NewObjects returns no ScaledObjects. live reads from the API server. record records an
// Event about a ScaledObject whose trigger cannot be used; it does not block.
func NewObjects(live client.Reader, record func(about corev1.ObjectReference, reason string)) *Objects {
	return &Objects{live: live, record: record, by: map[types.NamespacedName]*object{}}
}

// Report records an Event about a ScaledObject, once for each version of the object and
// reason.
func (all *Objects) Report(namespace, name, reason string) {
	all.mu.Lock()
	o := all.by[types.NamespacedName{Namespace: namespace, Name: name}]
	if o == nil || o.reported == reason {
		all.mu.Unlock()
		return
	}
	o.reported = reason
	uid := o.uid
	all.mu.Unlock()
	all.record(corev1.ObjectReference{APIVersion: "keda.sh/v1alpha1", Kind: "ScaledObject", Namespace: namespace, Name: name, UID: uid}, reason)
}

// Changed keeps what the scaler reads of a ScaledObject.
func (all *Objects) Changed(u *unstructured.Unstructured, gone bool) {
	key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	all.mu.Lock()
	defer all.mu.Unlock()
	if gone {
		delete(all.by, key)
		return
	}
	next := &object{ScaledObject: scaledObjectOf(u), uid: u.GetUID()}
	if before := all.by[key]; before != nil && before.uid == next.uid && reflect.DeepEqual(before.ScaledObject, next.ScaledObject) {
		next.reported = before.reported // only the status changed
	}
	all.by[key] = next
}

// The bounds of the triggers of a ScaledObject that are read, and of their metadata.
const (
	maxTriggers = 64
	maxMetadata = 512 // entries of all external triggers
)

func scaledObjectOf(u *unstructured.Unstructured) *ScaledObject {
	o := &ScaledObject{Namespace: u.GetNamespace(), Name: u.GetName()}
	ref, _, _ := unstructured.NestedMap(u.Object, "spec", "scaleTargetRef")
	o.Target.APIVersion, _, _ = unstructured.NestedString(ref, "apiVersion")
	o.Target.Kind, _, _ = unstructured.NestedString(ref, "kind")
	o.Target.Name, _, _ = unstructured.NestedString(ref, "name")
	if o.Target.Kind == "" {
		o.Target.Kind = "Deployment" // KEDA's default
	}
	if n, found, err := unstructured.NestedInt64(u.Object, "spec", "minReplicaCount"); found && err == nil {
		o.MinReplicas = int32(min(max(n, 0), 1<<30))
	}
	triggers, _, _ := unstructured.NestedSlice(u.Object, "spec", "triggers")
	entries := 0
	for _, t := range triggers[:min(len(triggers), maxTriggers)] {
		m, _ := t.(map[string]any)
		x := ObjectTrigger{}
		x.Type, _, _ = unstructured.NestedString(m, "type")
		x.MetricType, _, _ = unstructured.NestedString(m, "metricType")
		if metadata, _ := m["metadata"].(map[string]any); isExternal(x.Type) && entries+len(metadata) <= maxMetadata {
			entries += len(metadata)
			x.Metadata, _, _ = unstructured.NestedStringMap(m, "metadata")
		}
		o.Triggers = append(o.Triggers, x)
	}
	return o
}

// isExternal reports whether a trigger of this type may be of our scaler.
func isExternal(kind string) bool { return kind == "external" || kind == "external-push" }

// ScaledObject returns a ScaledObject from memory or, with live, from the API server.
func (all *Objects) ScaledObject(ctx context.Context, namespace, name string, live bool) (*ScaledObject, error) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if !live {
		all.mu.RLock()
		o := all.by[key]
		all.mu.RUnlock()
		if o == nil {
			return nil, errNoScaledObject(key)
		}
		return o.ScaledObject, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	switch err := all.live.Get(ctx, key, u); {
	case apierrors.IsNotFound(err):
		return nil, errNoScaledObject(key)
	case err != nil:
		return nil, fmt.Errorf("%w: read ScaledObject %s: the API server did not answer", ErrNoValue, key)
	}
	return scaledObjectOf(u), nil
}

func errNoScaledObject(key types.NamespacedName) error {
	return fmt.Errorf("%w: ScaledObject %s does not exist; ScaledJobs are not supported", ErrNotFound, key)
}
