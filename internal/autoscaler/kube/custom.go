// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
)

// custom is an object of a CRD as it is decoded: its spec and status stay text. Decoded,
// 1 MiB of them can take 40 MiB.
type custom struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec,omitempty"`
	Status            json.RawMessage `json:"status,omitempty"`
}

// DeepCopyObject returns a shallow copy: objects are replaced, never changed.
func (x *custom) DeepCopyObject() runtime.Object {
	y := *x
	return &y
}

// customList is a page of a list, as a server without streaming lists sends it.
type customList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []custom `json:"items"`
}

// DeepCopyObject returns a shallow copy.
func (l *customList) DeepCopyObject() runtime.Object {
	m := *l
	return &m
}

// The bounds of the spec and the status of an object of a CRD, in bytes of JSON. What is
// larger is not read.
const (
	// maxSpec is that of a tenant's object, and maxTrustedSpec that of a namespace of
	// Config.Trusted.
	maxSpec        = 64 << 10
	maxTrustedSpec = 1 << 20
	// customPage is the number of objects in a page of a list.
	customPage = 20
)

// maxAnnotation bounds the value of an annotation, in bytes: a boolean or a number.
const maxAnnotation = 16

// slimCustom keeps the spec, the status and the identity of an object of a CRD, and whether
// KEDA has paused it. A spec that is too large becomes a text that says so, which no reader of a spec accepts.
func slimCustom(x *custom, most int) *custom {
	slim := &custom{TypeMeta: x.TypeMeta, ObjectMeta: slimMeta(&x.ObjectMeta), Spec: x.Spec, Status: x.Status}
	slim.OwnerReferences = nil
	slim.Generation, slim.CreationTimestamp, slim.DeletionTimestamp = x.Generation, x.CreationTimestamp, x.DeletionTimestamp
	for _, key := range []string{target.PausedAnnotation, target.PausedReplicasAnnotation} {
		if value, ok := x.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&slim.ObjectMeta, key, strings.Clone(value[:min(len(value), maxAnnotation)]))
		}
	}
	if len(x.Spec) > most {
		slim.Spec = fmt.Appendf(nil, "%q", fmt.Sprintf("not read: it has %d bytes of JSON, at most %d are read", len(x.Spec), most))
	}
	if len(x.Status) > maxSpec {
		slim.Status = nil
	}
	return slim
}

// decoded returns the object as its readers take it.
func (x *custom) decoded() *unstructured.Unstructured {
	metadata, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&x.ObjectMeta)
	if err != nil {
		panic(err) // a type of Kubernetes that cannot be converted: a bug in this program
	}
	object := map[string]any{"apiVersion": x.APIVersion, "kind": x.Kind, "metadata": metadata}
	for name, text := range map[string]json.RawMessage{"spec": x.Spec, "status": x.Status} {
		var value any
		if len(text) > 0 && utiljson.Unmarshal(text, &value) == nil {
			object[name] = value
		}
	}
	return &unstructured.Unstructured{Object: object}
}

// customStore passes the objects of a kind to a handler. It keeps of each only which one it
// is: what else is kept is the handler's decision.
type customStore struct {
	handler toolscache.ResourceEventHandler
	most    func(namespace string) int // bytes of a spec
	known   map[types.NamespacedName]*custom
	listed  chan struct{} // closed after the first list
}

var _ toolscache.TransformingStore = (*customStore)(nil)

// Transformer implements toolscache.TransformingStore: a list is kept as slim objects
// until it is complete.
func (s *customStore) Transformer() toolscache.TransformFunc {
	return func(obj any) (any, error) {
		if x, ok := obj.(*custom); ok {
			return slimCustom(x, s.most(x.Namespace)), nil
		}
		return obj, nil
	}
}

// Add implements toolscache.ReflectorStore.
func (s *customStore) Add(obj any) error {
	x, ok := obj.(*custom)
	if !ok {
		return fmt.Errorf("a %T instead of an object", obj)
	}
	key := types.NamespacedName{Namespace: x.Namespace, Name: x.Name}
	slim := slimCustom(x, s.most(x.Namespace)).decoded()
	_, known := s.known[key]
	s.known[key] = &custom{TypeMeta: x.TypeMeta, ObjectMeta: metav1.ObjectMeta{Namespace: x.Namespace, Name: x.Name, UID: x.UID}}
	if known {
		s.handler.OnUpdate(slim, slim)
	} else {
		s.handler.OnAdd(slim, false)
	}
	return nil
}

// Update implements toolscache.ReflectorStore.
func (s *customStore) Update(obj any) error { return s.Add(obj) }

// Delete implements toolscache.ReflectorStore.
func (s *customStore) Delete(obj any) error {
	if x, ok := obj.(*custom); ok {
		s.remove(types.NamespacedName{Namespace: x.Namespace, Name: x.Name})
	}
	return nil
}

func (s *customStore) remove(key types.NamespacedName) {
	if x := s.known[key]; x != nil {
		delete(s.known, key)
		s.handler.OnDelete(x.decoded())
	}
}

// Replace implements toolscache.ReflectorStore: it takes over a whole list.
func (s *customStore) Replace(list []any, _ string) error {
	there := make(map[types.NamespacedName]bool, len(list))
	for _, obj := range list {
		if err := s.Add(obj); err != nil {
			return err
		}
		x := obj.(*custom) //nolint:errcheck,forcetypeassert // Add has checked it
		there[types.NamespacedName{Namespace: x.Namespace, Name: x.Name}] = true
	}
	for key := range s.known {
		if !there[key] {
			s.remove(key)
		}
	}
	select {
	case <-s.listed:
	default:
		close(s.listed)
	}
	return nil
}

// Resync implements toolscache.ReflectorStore. There is nothing to resync.
func (s *customStore) Resync() error { return nil }

// watchCustom is Watch for a kind without a Go type. An error means that the API server
// does not serve the kind yet, or that ctx is done.
func (c *Clients) watchCustom(ctx context.Context, gvk schema.GroupVersionKind, h toolscache.ResourceEventHandler) (started bool, err error) {
	rc, resource, err := c.customClient(gvk)
	if err != nil {
		return false, err
	}
	store := &customStore{handler: h, most: c.maxSpec, known: map[types.NamespacedName]*custom{}, listed: make(chan struct{})}
	lw := toolscache.NewListWatchFromClient(rc, resource, metav1.NamespaceAll, fields.Everything())
	lw.WatchFuncWithContext = func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.Watch = true
		return c.stream(ctx, rc.Get().Resource(resource).VersionedParams(&options, metav1.ParameterCodec), c.decodeCustom)
	}
	list := lw.ListWithContextFunc
	lw.ListWithContextFunc = func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		obj, err := list(ctx, options)
		if page, ok := obj.(*customList); ok {
			for i := range page.Items {
				page.Items[i] = *slimCustom(&page.Items[i], c.maxSpec(page.Items[i].Namespace))
			}
		}
		return obj, err
	}
	r := toolscache.NewReflectorWithOptions(
		lw, &custom{}, store, toolscache.ReflectorOptions{Name: "gpupilot", TypeDescription: gvk.Kind})
	r.WatchListPageSize = customPage
	c.running.Go(func() { c.reflect(ctx, r, gvk.Kind) })
	select {
	case <-store.listed:
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// decodeCustom decodes the object of an event, and drops what slimCustom drops.
func (c *Clients) decodeCustom(kind watch.EventType, raw []byte) (runtime.Object, error) {
	x := &custom{}
	if err := json.Unmarshal(raw, x); err != nil || kind == watch.Bookmark {
		return x, err
	}
	return slimCustom(x, c.maxSpec(x.Namespace)), nil
}

// customClient returns a client that decodes objects of a kind as custom, and the name of
// the kind's resource.
func (c *Clients) customClient(gvk schema.GroupVersionKind) (rc rest.Interface, resource string, err error) {
	mapping, err := c.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return nil, "", fmt.Errorf("find the resource of %s: %w", gvk.Kind, err)
	}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, gvk.GroupVersion())
	scheme.AddKnownTypeWithName(gvk, &custom{})
	scheme.AddKnownTypeWithName(gvk.GroupVersion().WithKind(gvk.Kind+"List"), &customList{})
	rc, err = apiutil.RESTClientForGVK(gvk, true, false, c.Config, serializer.NewCodecFactory(scheme), c.http)
	if err != nil {
		return nil, "", fmt.Errorf("make a client of %s: %w", gvk.Kind, err)
	}
	return rc, mapping.Resource.Resource, nil
}

// ReadCustom reads an object of a kind without a Go type, as Watch passes it; nil: there is
// none.
func (c *Clients) ReadCustom(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string) (*unstructured.Unstructured, error) {
	rc, resource, err := c.customClient(gvk)
	if err != nil {
		return nil, err
	}
	x := &custom{}
	if err := rc.Get().Namespace(namespace).Resource(resource).Name(name).Do(ctx).Into(x); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read %s %s/%s: %w", gvk.Kind, namespace, name, err)
	}
	return slimCustom(x, c.maxSpec(namespace)).decoded(), nil
}

// ReaderOf returns ReadCustom of a kind.
func (c *Clients) ReaderOf(gvk schema.GroupVersionKind) func(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error) {
	return func(ctx context.Context, namespace, name string) (*unstructured.Unstructured, error) {
		return c.ReadCustom(ctx, gvk, namespace, name)
	}
}

// maxRelistDelay is the longest time between two attempts to list a kind.
const maxRelistDelay = 30 * time.Second

// reflect lists and watches until ctx is done.
func (c *Clients) reflect(ctx context.Context, r *toolscache.Reflector, kind string) {
	delay := informerRetry
	for {
		began := time.Now()
		if err := r.ListAndWatchWithContext(ctx); err != nil {
			c.log.Debug("watch failed, restarting it", "kind", kind, "err", err)
		}
		if time.Since(began) > maxRelistDelay {
			delay = informerRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
			delay = min(2*delay, maxRelistDelay)
		}
	}
}
