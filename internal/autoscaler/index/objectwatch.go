// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// objectIndex is one watched kind.
type objectIndex struct {
	resource   schema.GroupResource
	kind       schema.GroupVersionKind
	namespaced bool
	objects    map[string]map[string]*Object // by namespace and name; guarded by Objects.mu

	listed  chan struct{} // closed after the first list
	checked chan struct{} // closed after the first check of the right to list

	mu  sync.Mutex
	err error // why the kind cannot be listed
}

// typed returns an empty object of a kind that is watched with its selector; nil for
// others, whose metadata is watched.
func (x *objectIndex) typed() client.Object {
	switch x.kind.GroupKind() {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		return &appsv1.Deployment{}
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		return &appsv1.StatefulSet{}
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		return &appsv1.ReplicaSet{}
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		return &batchv1.Job{}
	}
	return nil
}

// prototype returns an empty object of the kind to watch.
func (x *objectIndex) prototype() client.Object {
	if obj := x.typed(); obj != nil {
		return obj
	}
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(x.kind)
	return m
}

// index returns the index of a resource, and requests its watch at the first call.
func (o *Objects) index(r schema.GroupResource) (*objectIndex, error) {
	o.mu.RLock()
	x := o.kinds[r]
	o.mu.RUnlock()
	if x != nil {
		return x, nil
	}
	kind, namespaced, err := o.lookup(r)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if x := o.kinds[r]; x != nil {
		return x, nil
	}
	if len(o.kinds) >= maxObjectKinds {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("%s have no metrics: %d kinds of objects are watched already, which is the limit", r, maxObjectKinds))
	}
	x = &objectIndex{
		resource: r, kind: kind, namespaced: namespaced, objects: map[string]map[string]*Object{},
		listed: make(chan struct{}), checked: make(chan struct{}),
	}
	o.kinds[r] = x
	o.starts <- x // has room for all kinds
	return x, nil
}

// lookupTTL is how long it is remembered that the cluster does not serve a resource.
const lookupTTL = 30 * time.Second

// found is the kind of a resource, or why there is none.
type found struct {
	kind       schema.GroupVersionKind
	namespaced bool
	err        error
	at         time.Time
}

// lookup finds the preferred version of a resource. Failures are remembered for
// lookupTTL, because the mapper asks the API server for unknown resources each time.
func (o *Objects) lookup(r schema.GroupResource) (kind schema.GroupVersionKind, namespaced bool, err error) {
	o.mu.RLock()
	f, ok := o.found[r]
	o.mu.RUnlock()
	if !ok || f.err != nil && time.Since(f.at) > lookupTTL {
		f.kind, f.namespaced, f.err = o.find(r)
		f.at = time.Now()
		o.mu.Lock()
		if _, known := o.found[r]; known || len(o.found) < maxObjectKinds {
			o.found[r] = f
		}
		o.mu.Unlock()
	}
	return f.kind, f.namespaced, f.err
}

// find asks the mapper for the preferred version of a resource.
func (o *Objects) find(r schema.GroupResource) (kind schema.GroupVersionKind, namespaced bool, err error) {
	kind, err = o.cfg.Mapper.KindFor(r.WithVersion(""))
	if meta.IsNoMatchError(err) {
		return kind, false, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
			Message: fmt.Sprintf("%s have no metrics: the cluster does not serve this resource", r),
		}}
	}
	if err != nil {
		return kind, false, apierrors.NewServiceUnavailable(fmt.Sprintf("find the kind of %s: %v", r, err))
	}
	mapping, err := o.cfg.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return kind, false, apierrors.NewServiceUnavailable(fmt.Sprintf("find the scope of %s: %v", r, err))
	}
	return kind, mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
}

// synced returns the index of a resource after its first list. It waits for
// objectSyncWait at most.
func (o *Objects) synced(ctx context.Context, r schema.GroupResource) (*objectIndex, error) {
	x, err := o.index(r)
	if err != nil {
		return nil, err
	}
	select {
	case <-x.listed:
		return x, nil
	default:
	}
	late := time.NewTimer(objectSyncWait)
	defer late.Stop()
	for checked := x.checked; ; checked = nil {
		if err := x.failure(); err != nil {
			return nil, err
		}
		select {
		case <-x.listed:
			return x, nil
		case <-checked:
		case <-late.C:
			return nil, unavailable(r)
		case <-ctx.Done():
			return nil, unavailable(r)
		}
	}
}

// failure returns why the kind cannot be listed; nil: it can, or that is not known yet.
func (x *objectIndex) failure() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.err
}

// watch keeps the index of a kind until ctx is done. It begins when the controller may
// list the kind.
func (o *Objects) watch(ctx context.Context, x *objectIndex) {
	for first := true; ; first = false {
		err := o.checkList(ctx, x)
		x.mu.Lock()
		changed := (err == nil) != (x.err == nil)
		x.err = err
		x.mu.Unlock()
		if first {
			close(x.checked)
		}
		if err == nil {
			break
		}
		if changed {
			o.cfg.Log.Warn("cannot list objects for the metrics API, retrying", "resource", x.resource.String(), "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(objectRetry):
		}
	}
	if o.cfg.Watch(ctx, x.prototype(), objectHandler{o, x}) == nil {
		close(x.listed)
	}
}

// checkList lists one object, so that a missing right is told in an error. An informer
// would retry without a word.
func (o *Objects) checkList(ctx context.Context, x *objectIndex) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(x.kind.GroupVersion().WithKind(x.kind.Kind + "List"))
	err := o.cfg.Live.List(ctx, list, client.Limit(1))
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err):
		return apierrors.NewServiceUnavailable(fmt.Sprintf(
			"%s have no metrics: the controller may not list them. Its ClusterRole needs the rule {apiGroups: [%q], resources: [%s], verbs: [list, watch]}",
			x.resource, x.resource.Group, x.resource.Resource))
	}
	return apierrors.NewServiceUnavailable(fmt.Sprintf("list %s: %v", x.resource, err))
}

// objectHandler keeps the index of one kind from the events of its informer.
type objectHandler struct {
	o *Objects
	x *objectIndex
}

var _ toolscache.ResourceEventHandler = objectHandler{}

// OnAdd handles a new object.
func (h objectHandler) OnAdd(obj any, _ bool) {
	if m, ok := obj.(client.Object); ok {
		h.o.set(h.x, m.GetNamespace(), m.GetName(), h.x.slim(m))
	}
}

// OnUpdate handles a changed object.
func (h objectHandler) OnUpdate(_, obj any) { h.OnAdd(obj, false) }

// OnDelete handles a deleted object.
func (h objectHandler) OnDelete(obj any) {
	if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	if m, ok := obj.(client.Object); ok {
		h.o.set(h.x, m.GetNamespace(), m.GetName(), nil)
	}
}

// slim returns what the index keeps of an object.
func (x *objectIndex) slim(m client.Object) *Object {
	object := &Object{
		Resource: x.resource, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(), Labels: m.GetLabels(),
		Selector: selectorOf(m),
	}
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		object.Owner, object.OwnerKind, object.OwnerName = owner.UID, owner.Kind, owner.Name
	}
	return object
}
