// SPDX-License-Identifier: Apache-2.0

// Package target knows the workloads that autoscalers address: it reads and writes their
// replicas, and finds the autoscalers that address the same workload.
package target

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// ErrNotFound means that a scale target does not exist or cannot be scaled. Other
// errors are temporary errors of the API server.
var ErrNotFound = errors.New("no such scale target")

// Target is a scale target as last read.
type Target struct {
	Key
	Kind     string // in its canonical case, unlike the kind of the key
	Replicas int32  // spec.replicas
	Selector labels.Selector
	Template replica.Template
	First    int32 // ordinal of a StatefulSet
	// Refused is why pods cannot be created, such as a ResourceQuota, as the status of a Deployment says; nil: they can.
	Refused *v1alpha1.PendingStatus

	gvk       schema.GroupVersionKind
	version   string // of its scale
	templated string // the version whose Template was read
}

func (t *Target) String() string { return fmt.Sprintf("%s %s", t.Kind, t.name) }

// Scaler reads and writes the replicas of scale targets. Its methods may be called
// concurrently.
type Scaler struct {
	client client.Client
	turns  *fair.Slots // of reads of kinds that are not cached, with the namespace as payer

	mu      sync.Mutex
	written map[Key]written      // own writes that may be newer than the cache
	reads   map[Key]cachedTarget // of kinds that are not cached
}

// written is the result of the last write to a target.
type written struct {
	replicas int32
	version  string
	at       time.Time
}

type cachedTarget struct {
	target Target
	at     time.Time
}

const (
	// readTTL is how long a read of a kind that is not cached stays valid.
	readTTL = 900 * time.Millisecond
	// writtenTTL is how long an own write takes precedence over the cache if their
	// versions cannot be compared.
	writtenTTL = 2 * time.Second
	// cacheLag is how long an own write takes precedence over a cache with an older
	// version. Versions stay older if etcd was restored from a backup.
	cacheLag = 30 * time.Second
)

// NewScaler makes a Scaler. The client reads Deployments and StatefulSets from a cache.
func NewScaler(c client.Client) *Scaler {
	return &Scaler{client: c, turns: fair.NewSlots(fair.ForWrites()), written: map[Key]written{}, reads: map[Key]cachedTarget{}}
}

// Resolve reads the target of a reference, from the cache or, with live, from the API
// server.
func (s *Scaler) Resolve(ctx context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference, live bool) (Target, error) {
	gv, err := schema.ParseGroupVersion(withDefaultVersion(ref.APIVersion, ref.Kind))
	if err != nil || gv.Version == "" {
		return Target{}, fmt.Errorf("%w: %s %q has the apiVersion %q; it must be GROUP/VERSION", ErrNotFound, ref.Kind, ref.Name, ref.APIVersion)
	}
	kind, workload := ref.Kind, false
	if k := cachedKind(kind); k != "" && gv.Group == appsv1.GroupName {
		kind, workload = k, true
	}
	t := Target{Key: NewKey(gv.Group, kind, namespace, ref.Name), Kind: kind, gvk: gv.WithKind(kind)}
	switch {
	case workload:
		err = s.readWorkload(ctx, &t)
		if err == nil && live {
			err = s.readScale(ctx, &t)
		}
	default:
		err = s.readOther(ctx, &t, live)
	}
	switch {
	case apierrors.IsNotFound(err):
		return t, fmt.Errorf("%w: %s %s/%s: %w", ErrNotFound, ref.Kind, namespace, ref.Name, err)
	case meta.IsNoMatchError(err):
		return t, fmt.Errorf("%w: kind %s does not exist in %s", ErrNotFound, ref.Kind, gv)
	case err != nil:
		return t, fmt.Errorf("read %s %s/%s: %w", ref.Kind, namespace, ref.Name, nameRight(err))
	}
	if !live {
		s.applyOwnWrite(&t)
	}
	return t, nil
}

// readWorkload reads a Deployment or StatefulSet from the cache.
func (s *Scaler) readWorkload(ctx context.Context, t *Target) error {
	var selector *metav1.LabelSelector
	var replicas *int32
	var pods *corev1.PodTemplateSpec
	var obj client.Object
	key := client.ObjectKey{Namespace: t.namespace, Name: t.name}
	switch t.Kind {
	case "Deployment":
		d := &appsv1.Deployment{}
		if err := s.client.Get(ctx, key, d); err != nil {
			return err
		}
		obj, selector, replicas, pods = d, d.Spec.Selector, d.Spec.Replicas, &d.Spec.Template
		for _, c := range d.Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
				t.Refused = &v1alpha1.PendingStatus{Reason: c.Reason, Message: c.Message}
			}
		}
	default:
		d := &appsv1.StatefulSet{}
		if err := s.client.Get(ctx, key, d); err != nil {
			return err
		}
		obj, selector, replicas, pods = d, d.Spec.Selector, d.Spec.Replicas, &d.Spec.Template
		if d.Spec.Ordinals != nil {
			t.First = d.Spec.Ordinals.Start
		}
	}
	sel, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	t.Selector, t.version, t.Replicas, t.Template.Pods = sel, obj.GetResourceVersion(), 1, &pods.Spec
	if replicas != nil {
		t.Replicas = *replicas
	}
	return nil
}

// readOther reads a kind that is not cached through its scale subresource.
func (s *Scaler) readOther(ctx context.Context, t *Target, live bool) error {
	s.mu.Lock()
	last := s.reads[t.Key]
	s.mu.Unlock()
	if !live && time.Since(last.at) < readTTL {
		*t = last.target
		return nil
	}
	obj, _ := t.object()
	// After an error the read, which asks for the same mapping, fails too.
	if namespaced, err := s.client.IsObjectNamespaced(obj); err == nil && !namespaced { // it belongs to no tenant: it is not even read for one
		return fmt.Errorf("%w: kind %s of %s is cluster-scoped; scaleTargetRef names what is in the namespace of the GPUAutoscaler", ErrNotFound, t.Kind, t.gvk.GroupVersion())
	}
	done, err := s.turns.Acquire(ctx, fair.Request{Payer: fair.Namespace(t.namespace), Signal: live})
	if err != nil {
		return err
	}
	defer done()
	if err := s.readScale(ctx, t); err != nil {
		return err
	}
	t.Template, t.templated = last.target.Template, last.target.templated
	if t.isGroups() && t.version != t.templated && s.readGroups(ctx, t) == nil {
		t.templated = t.version
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[t.Key] = cachedTarget{*t, time.Now()}
	return nil
}

func (t *Target) isGroups() bool {
	return t.group == "leaderworkerset.x-k8s.io" && strings.EqualFold(t.Kind, "LeaderWorkerSet")
}

// readGroups reads the templates of a LeaderWorkerSet. Their fields have the same names in
// all its versions.
func (s *Scaler) readGroups(ctx context.Context, t *Target) error {
	obj, _ := t.object()
	u := obj.(*unstructured.Unstructured)
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(u), u); err != nil {
		return err
	}
	var set struct {
		Spec struct {
			LeaderWorkerTemplate struct {
				LeaderTemplate *corev1.PodTemplateSpec `json:"leaderTemplate"`
				WorkerTemplate corev1.PodTemplateSpec  `json:"workerTemplate"`
				Size           *int32                  `json:"size"`
			} `json:"leaderWorkerTemplate"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &set); err != nil {
		return fmt.Errorf("decode the templates: %w", err)
	}
	groups := &set.Spec.LeaderWorkerTemplate
	t.Template = replica.Template{Pods: &groups.WorkerTemplate.Spec}
	if groups.LeaderTemplate != nil {
		t.Template.Pods = &groups.LeaderTemplate.Spec
	}
	if groups.Size != nil && *groups.Size > 1 {
		t.Template.Workers, t.Template.NumWorkers = &groups.WorkerTemplate.Spec, *groups.Size-1
	}
	return nil
}

// readScale reads the target's scale from the API server.
func (s *Scaler) readScale(ctx context.Context, t *Target) error {
	sc, err := s.getScale(ctx, t)
	if err != nil {
		return err
	}
	t.Replicas, t.version = sc.Spec.Replicas, sc.ResourceVersion
	if t.Selector == nil {
		if sc.Status.Selector == "" {
			return fmt.Errorf("%w: the scale of %s %s has no selector, so its pods cannot be found", ErrNotFound, t.Kind, t.name)
		}
		sel, err := policy.ParseSelector(sc.Status.Selector)
		if err != nil {
			return fmt.Errorf("%w: selector of the scale of %s %s: %w", ErrNotFound, t.Kind, t.name, err)
		}
		t.Selector = sel
	}
	return nil
}

// getScale reads the scale subresource. Kinds that are not in the scheme are read and
// written as unstructured objects.
func (s *Scaler) getScale(ctx context.Context, t *Target) (*autoscalingv1.Scale, error) {
	sc := &autoscalingv1.Scale{}
	obj, known := t.object()
	if known {
		return sc, s.client.SubResource("scale").Get(ctx, obj, sc)
	}
	body := &unstructured.Unstructured{}
	body.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
	if err := s.client.SubResource("scale").Get(ctx, obj, body); err != nil {
		return nil, err
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(body.Object, sc); err != nil {
		return nil, fmt.Errorf("decode a scale: %w", err)
	}
	return sc, nil
}

// putScale writes the scale subresource and returns its new resource version.
func (s *Scaler) putScale(ctx context.Context, t *Target, sc *autoscalingv1.Scale) (version string, err error) {
	obj, known := t.object()
	if known {
		err = s.client.SubResource("scale").Update(ctx, obj, client.WithSubResourceBody(sc))
		return sc.ResourceVersion, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(sc)
	if err != nil {
		return "", fmt.Errorf("encode a scale: %w", err)
	}
	// The converter omits zero replicas, since the field is omitempty.
	if err := unstructured.SetNestedField(fields, int64(sc.Spec.Replicas), "spec", "replicas"); err != nil {
		return "", fmt.Errorf("encode a scale: %w", err)
	}
	body := &unstructured.Unstructured{Object: fields}
	err = s.client.SubResource("scale").Update(ctx, obj, client.WithSubResourceBody(body))
	return body.GetResourceVersion(), err
}

// object returns an object with the target's kind and name. known is true if the kind
// is in the scheme.
func (t *Target) object() (obj client.Object, known bool) {
	meta := metav1.ObjectMeta{Namespace: t.namespace, Name: t.name}
	switch (schema.GroupKind{Group: t.group, Kind: t.Kind}) {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		return &appsv1.Deployment{ObjectMeta: meta}, true
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		return &appsv1.StatefulSet{ObjectMeta: meta}, true
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(t.gvk)
	u.SetNamespace(t.namespace)
	u.SetName(t.name)
	return u, false
}

// Write sets the target's replicas. If the target was changed since it was read, the
// error is a conflict.
func (s *Scaler) Write(ctx context.Context, t *Target, replicas int32) error {
	version, err := s.putScale(ctx, t, &autoscalingv1.Scale{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name, ResourceVersion: t.version},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	})
	if err != nil {
		return fmt.Errorf("scale %s %s/%s to %d: %w", t.Kind, t.namespace, t.name, replicas, nameRight(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[t.Key] = written{replicas, version, time.Now()}
	delete(s.reads, t.Key)
	return nil
}

// applyOwnWrite replaces the cached replicas by those of the last own write while the
// cache is older, for at most cacheLag.
func (s *Scaler) applyOwnWrite(t *Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.written[t.Key]
	if !ok {
		return
	}
	order, err := resourceversion.CompareResourceVersion(t.version, w.version)
	ttl := cacheLag
	if err != nil {
		ttl = writtenTTL
	}
	if err == nil && order >= 0 || time.Since(w.at) > ttl {
		delete(s.written, t.Key)
		return
	}
	t.Replicas, t.version = w.replicas, w.version
}

// Forget deletes the entries of a target that is no longer scaled.
func (s *Scaler) Forget(k Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, k)
	delete(s.reads, k)
}

// PodsOf finds the pods of a scale target, for usage.Deps.
func (s *Scaler) PodsOf(ctx context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference) (usage.Target, error) {
	t, err := s.Resolve(ctx, namespace, ref, false)
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("%w: %w", usage.ErrUnknownWorkload, err)
	}
	return usage.Target{Kind: t.Kind, Selector: t.Selector}, err
}

// Key identifies a scale target, without the version of its API. The kind is in lower
// case, because the REST mappers accept both Deployment and deployment. NewKey makes one.
type Key struct{ group, kind, namespace, name string }

// NewKey returns the key of a workload.
func NewKey(group, kind, namespace, name string) Key {
	return Key{group, strings.ToLower(kind), namespace, name}
}

// KeyOf returns the key of a scaleTargetRef in a namespace.
func KeyOf(namespace, apiVersion, kind, name string) Key {
	gv, _ := schema.ParseGroupVersion(withDefaultVersion(apiVersion, kind))
	return NewKey(gv.Group, kind, namespace, name)
}

// withDefaultVersion returns the apiVersion, or apps/v1 if it is empty and the kind
// is Deployment or StatefulSet.
func withDefaultVersion(apiVersion, kind string) string {
	if apiVersion == "" && cachedKind(kind) != "" {
		return "apps/v1"
	}
	return apiVersion
}

// cachedKind returns the canonical name of a kind that is read from the cache, given
// in any case; empty for other kinds.
func cachedKind(kind string) string {
	for _, k := range []string{"Deployment", "StatefulSet"} {
		if strings.EqualFold(k, kind) {
			return k
		}
	}
	return ""
}
