// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// errNoTarget means that a scale target does not exist or cannot be scaled. Other
// errors are temporary errors of the API server.
var errNoTarget = errors.New("no such scale target")

// target is a scale target as last read.
type target struct {
	claim
	kind     string // in its canonical case, unlike the kind of the claim
	gvk      schema.GroupVersionKind
	replicas int32 // spec.replicas
	version  string
	selector labels.Selector
	pods     *corev1.PodSpec // of the pod template; nil: not known
}

func (t *target) String() string { return fmt.Sprintf("%s %s", t.kind, t.name) }

// targets reads and writes the replicas of scale targets.
type targets struct {
	client client.Client

	mu      sync.Mutex
	written map[claim]written      // own writes that may be newer than the cache
	reads   map[claim]cachedTarget // of kinds that are not cached
}

// written is the result of this controller's last write to a target.
type written struct {
	replicas int32
	version  string
	at       time.Time
}

type cachedTarget struct {
	target target
	at     time.Time
}

const (
	// readTTL is how long a read of a kind that is not cached stays valid.
	readTTL = 900 * time.Millisecond
	// writtenTTL is how long an own write takes precedence over the cache if their
	// versions cannot be compared.
	writtenTTL = 2 * time.Second
)

func newTargets(c client.Client) *targets {
	return &targets{client: c, written: map[claim]written{}, reads: map[claim]cachedTarget{}}
}

// resolve reads the target of a reference, from the cache or, with live, from the API
// server.
func (s *targets) resolve(ctx context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference, live bool) (target, error) {
	gv, err := schema.ParseGroupVersion(withDefaultVersion(ref.APIVersion, ref.Kind))
	if err != nil || gv.Version == "" {
		return target{}, fmt.Errorf("%w: %s %q has the apiVersion %q; it must be GROUP/VERSION", errNoTarget, ref.Kind, ref.Name, ref.APIVersion)
	}
	kind, workload := ref.Kind, false
	if k := cachedKind(kind); k != "" && gv.Group == appsv1.GroupName {
		kind, workload = k, true
	}
	t := target{claim: newClaim(gv.Group, kind, namespace, ref.Name), kind: kind, gvk: gv.WithKind(kind)}
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
		return t, fmt.Errorf("%w: %s %s/%s: %w", errNoTarget, ref.Kind, namespace, ref.Name, err)
	case meta.IsNoMatchError(err):
		return t, fmt.Errorf("%w: kind %s does not exist in %s", errNoTarget, ref.Kind, gv)
	case err != nil:
		return t, fmt.Errorf("read %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
	}
	if !live {
		s.applyOwnWrite(&t)
	}
	return t, nil
}

// readWorkload reads a Deployment or StatefulSet from the cache.
func (s *targets) readWorkload(ctx context.Context, t *target) error {
	var selector *metav1.LabelSelector
	var replicas *int32
	var pods *corev1.PodTemplateSpec
	var obj client.Object
	key := client.ObjectKey{Namespace: t.namespace, Name: t.name}
	switch t.kind {
	case "Deployment":
		d := &appsv1.Deployment{}
		if err := s.client.Get(ctx, key, d); err != nil {
			return err
		}
		obj, selector, replicas, pods = d, d.Spec.Selector, d.Spec.Replicas, &d.Spec.Template
	default:
		d := &appsv1.StatefulSet{}
		if err := s.client.Get(ctx, key, d); err != nil {
			return err
		}
		obj, selector, replicas, pods = d, d.Spec.Selector, d.Spec.Replicas, &d.Spec.Template
	}
	sel, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	t.selector, t.version, t.replicas, t.pods = sel, obj.GetResourceVersion(), 1, &pods.Spec
	if replicas != nil {
		t.replicas = *replicas
	}
	return nil
}

// readOther reads a kind that is not cached through its scale subresource.
func (s *targets) readOther(ctx context.Context, t *target, live bool) error {
	s.mu.Lock()
	last := s.reads[t.claim]
	s.mu.Unlock()
	if !live && time.Since(last.at) < readTTL {
		*t = last.target
		return nil
	}
	if err := s.readScale(ctx, t); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads[t.claim] = cachedTarget{*t, time.Now()}
	return nil
}

// readScale reads the target's scale from the API server.
func (s *targets) readScale(ctx context.Context, t *target) error {
	sc, err := s.getScale(ctx, t)
	if err != nil {
		return err
	}
	t.replicas, t.version = sc.Spec.Replicas, sc.ResourceVersion
	if t.selector == nil {
		if sc.Status.Selector == "" {
			return fmt.Errorf("%w: the scale of %s %s has no selector, so its pods cannot be found", errNoTarget, t.kind, t.name)
		}
		sel, err := labels.Parse(sc.Status.Selector)
		if err != nil {
			return fmt.Errorf("%w: selector of the scale of %s %s: %w", errNoTarget, t.kind, t.name, err)
		}
		t.selector = sel
	}
	return nil
}

// getScale reads the scale subresource. Kinds that are not in the scheme are read and
// written as unstructured objects.
func (s *targets) getScale(ctx context.Context, t *target) (*autoscalingv1.Scale, error) {
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
func (s *targets) putScale(ctx context.Context, t *target, sc *autoscalingv1.Scale) (version string, err error) {
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
func (t *target) object() (obj client.Object, known bool) {
	meta := metav1.ObjectMeta{Namespace: t.namespace, Name: t.name}
	switch (schema.GroupKind{Group: t.group, Kind: t.kind}) {
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

// write sets the target's replicas. If the target was changed since it was read, the
// error is a conflict.
func (s *targets) write(ctx context.Context, t *target, replicas int32) error {
	version, err := s.putScale(ctx, t, &autoscalingv1.Scale{
		TypeMeta:   metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.name, ResourceVersion: t.version},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	})
	if err != nil {
		return fmt.Errorf("scale %s %s/%s to %d: %w", t.kind, t.namespace, t.name, replicas, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[t.claim] = written{replicas, version, time.Now()}
	delete(s.reads, t.claim)
	return nil
}

// applyOwnWrite replaces the cached replicas by those of the last own write while the
// cache is older.
func (s *targets) applyOwnWrite(t *target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.written[t.claim]
	if !ok {
		return
	}
	order, err := resourceversion.CompareResourceVersion(t.version, w.version)
	if err == nil && order >= 0 || err != nil && time.Since(w.at) > writtenTTL {
		delete(s.written, t.claim)
		return
	}
	t.replicas, t.version = w.replicas, w.version
}

// forget deletes the entries of a target that is no longer scaled.
func (s *targets) forget(cl claim) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.written, cl)
	delete(s.reads, cl)
}

// ScaleTarget finds the pods of a scale target, for usage.Deps.
func (c *Controller) ScaleTarget(ctx context.Context, namespace string, ref v1alpha1.CrossVersionObjectReference) (usage.Target, error) {
	t, err := c.targets.resolve(ctx, namespace, ref, false)
	if errors.Is(err, errNoTarget) {
		err = fmt.Errorf("%w: %w", usage.ErrUnknownWorkload, err)
	}
	return usage.Target{Kind: t.kind, Selector: t.selector}, err
}
