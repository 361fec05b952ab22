// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Object is what the index keeps of an object. It is shared and must not be changed.
type Object struct {
	Resource        schema.GroupResource
	Namespace, Name string
	UID             types.UID
	Labels          labels.Set
	Owner           types.UID // of the object's controller; empty: none
	OwnerKind       string
	OwnerName       string
	// Selector selects the pods of the object; nil: the kind has no such field.
	Selector labels.Selector
}

// ObjectsConfig is the configuration of Objects.
type ObjectsConfig struct {
	// Watch calls h for each object of the kind of obj, as Clients.Watch does.
	Watch  func(ctx context.Context, obj client.Object, h toolscache.ResourceEventHandler) error
	Live   client.Reader // for one request per kind, which tells whether the kind may be listed
	Mapper meta.RESTMapper
	Log    *slog.Logger
}

// Objects indexes objects other than pods by name and by owner. A kind is watched from
// the first request for it on, with its metadata only; of the workloads of Kubernetes,
// also with their selectors.
type Objects struct {
	cfg     ObjectsConfig
	starts  chan *objectIndex
	matches matches

	mu       sync.RWMutex
	kinds    map[schema.GroupResource]*objectIndex
	children map[ownerKey][]*Object
	byUID    map[ownerKey]*Object
	found    map[schema.GroupResource]found // kinds of resources that were requested
}

type ownerKey struct {
	namespace string
	uid       types.UID
}

// The bounds of Objects.
const (
	maxObjectKinds = 64
	// objectSyncWait is how long a request waits for the first list of its kind.
	objectSyncWait = 5 * time.Second
	// objectRetry is the interval at which the right to list a kind is checked again.
	objectRetry = 15 * time.Second
)

// NewObjects makes an empty index. Run fills it.
func NewObjects(cfg ObjectsConfig) *Objects {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Objects{
		cfg: cfg, starts: make(chan *objectIndex, maxObjectKinds),
		kinds: map[schema.GroupResource]*objectIndex{}, children: map[ownerKey][]*Object{}, byUID: map[ownerKey]*Object{},
		found: map[schema.GroupResource]found{},
	}
}

// Run watches the requested kinds until ctx is done.
func (o *Objects) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case x := <-o.starts:
			running.Go(func() { o.watch(ctx, x) })
		}
	}
}

// Kind returns the kind of a resource, and whether its objects are namespaced. It starts
// no watch. The error is an API status error.
func (o *Objects) Kind(r schema.GroupResource) (kind schema.GroupVersionKind, namespaced bool, err error) {
	return o.lookup(r)
}

// Has reports whether there is an object of that name.
func (o *Objects) Has(ctx context.Context, r schema.GroupResource, namespace, name string) (bool, error) {
	object, err := o.Get(ctx, r, namespace, name)
	return object != nil, err
}

// Get finds an object by its name; nil: there is none. The error is an API status error.
func (o *Objects) Get(ctx context.Context, r schema.GroupResource, namespace, name string) (*Object, error) {
	x, err := o.synced(ctx, r)
	if err != nil {
		return nil, err
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	return x.objects[namespace][name], nil
}

// Names returns the names of the objects that the selector matches, sorted.
func (o *Objects) Names(ctx context.Context, r schema.GroupResource, namespace string, selector labels.Selector) ([]string, error) {
	objects, err := o.Select(ctx, r, namespace, selector)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(objects))
	for i, object := range objects {
		names[i] = object.Name
	}
	return names, nil
}

// Select lists the objects of a namespace that the selector matches, sorted by name.
// namespace is empty for cluster-scoped objects. The error is an API status error.
func (o *Objects) Select(ctx context.Context, r schema.GroupResource, namespace string, selector labels.Selector) ([]*Object, error) {
	x, err := o.synced(ctx, r)
	if err != nil {
		return nil, err
	}
	o.mu.RLock()
	var out []*Object
	for _, object := range x.objects[namespace] {
		if selects(selector, object.Labels) {
			out = append(out, object)
		}
	}
	o.mu.RUnlock()
	slices.SortFunc(out, func(a, b *Object) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// AppendChildren appends the objects of a namespace whose controller has this UID, of
// the kinds that are watched.
func (o *Objects) AppendChildren(dst []*Object, namespace string, uid types.UID) []*Object {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return append(dst, o.children[ownerKey{namespace, uid}]...)
}

// Want has a resource watched, if it is not yet. It does not wait.
func (o *Objects) Want(r schema.GroupResource) { _, _ = o.index(r) }

// set replaces an object of the index by a newer version; object is nil if it is gone.
func (o *Objects) set(x *objectIndex, namespace, name string, object *Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if old := x.objects[namespace][name]; old != nil {
		o.unlink(old)
		delete(x.objects[namespace], name)
		if len(x.objects[namespace]) == 0 {
			delete(x.objects, namespace)
		}
	}
	if object == nil {
		return
	}
	if x.objects[namespace] == nil {
		x.objects[namespace] = map[string]*Object{}
	}
	x.objects[namespace][name] = object
	o.byUID[ownerKey{namespace, object.UID}] = object
	if object.Owner != "" {
		k := ownerKey{namespace, object.Owner}
		o.children[k] = append(o.children[k], object)
	}
}

func (o *Objects) unlink(old *Object) {
	delete(o.byUID, ownerKey{old.Namespace, old.UID})
	if old.Owner == "" {
		return
	}
	k := ownerKey{old.Namespace, old.Owner}
	o.children[k] = slices.DeleteFunc(o.children[k], func(x *Object) bool { return x == old })
	if len(o.children[k]) == 0 {
		delete(o.children, k)
	}
}

// selectorOf returns the pod selector of a workload; nil: it has none, or it is invalid.
func selectorOf(obj client.Object) labels.Selector {
	var s *metav1.LabelSelector
	switch o := obj.(type) {
	case *appsv1.Deployment:
		s = o.Spec.Selector
	case *appsv1.StatefulSet:
		s = o.Spec.Selector
	case *appsv1.ReplicaSet:
		s = o.Spec.Selector
	case *batchv1.Job:
		s = o.Spec.Selector
	}
	if s == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// unavailable returns the error for a request whose kind has not been listed yet.
func unavailable(r schema.GroupResource) error {
	return apierrors.NewServiceUnavailable("the " + r.String() + " have not been listed yet, try again")
}

// wantInterval is how often it is checked whether a kind of workloads is served now.
const wantInterval = 30 * time.Second

// WantOwners has the objects between pods and their workloads watched, until ctx is done.
func (o *Objects) WantOwners(ctx context.Context) {
	tick := time.NewTicker(wantInterval)
	defer tick.Stop()
	for {
		for _, r := range ownerResources() {
			o.Want(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
