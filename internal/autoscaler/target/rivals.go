// SPDX-License-Identifier: Apache-2.0

package target

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Rival is an object that sets the replicas of a target: of another autoscaler, or
// another GPUAutoscaler.
type Rival struct{ Kind, Namespace, Name string }

func (r Rival) String() string { return fmt.Sprintf("%s %s", r.Kind, r.Name) }

// OfHPA returns a HorizontalPodAutoscaler as a rival, and its target.
func OfHPA(h *autoscalingv2.HorizontalPodAutoscaler) (Rival, Key) {
	ref := h.Spec.ScaleTargetRef
	return Rival{"HorizontalPodAutoscaler", h.Namespace, h.Name}, KeyOf(h.Namespace, ref.APIVersion, ref.Kind, ref.Name)
}

// ScaledObject returns an empty ScaledObject, KEDA's kind.
func ScaledObject() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"})
	return u
}

// OfScaledObject returns a ScaledObject as a rival, and its target.
func OfScaledObject(u *unstructured.Unstructured) (Rival, Key) {
	ref, _, _ := unstructured.NestedStringMap(u.Object, "spec", "scaleTargetRef")
	kind := cmp.Or(ref["kind"], "Deployment") // KEDA's default
	return Rival{"ScaledObject", u.GetNamespace(), u.GetName()}, KeyOf(u.GetNamespace(), ref["apiVersion"], kind, ref["name"])
}

// The annotations that pause a ScaledObject.
const (
	PausedAnnotation         = "autoscaling.keda.sh/paused"
	PausedReplicasAnnotation = "autoscaling.keda.sh/paused-replicas"
)

// IsPaused reports whether KEDA has paused a ScaledObject with its replicas as they are, so that it sets none. The
// annotation alone does not suffice: KEDA has its HorizontalPodAutoscaler until it has seen the annotation. With
// paused-replicas, it sets these.
func IsPaused(u *unstructured.Unstructured) bool {
	annotations := u.GetAnnotations()
	value, ok := annotations[PausedAnnotation]
	if _, holds := annotations[PausedReplicasAnnotation]; !ok || holds {
		return false
	}
	if paused, err := strconv.ParseBool(value); err == nil && !paused {
		return false // KEDA takes what is no boolean for true
	}
	field, _, _ := unstructured.NestedFieldNoCopy(u.Object, "status", "conditions")
	conditions, _ := field.([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Paused" && condition["status"] == "True"
	})
}

// Rivals indexes the objects that set replicas by their target. Its methods may be
// called concurrently.
type Rivals struct {
	mu          sync.RWMutex
	targets     map[Rival]Key       // of HorizontalPodAutoscalers and ScaledObjects
	uids        map[Rival]types.UID // of HorizontalPodAutoscalers
	hpas        map[Rival]view.HPA  // those that read the controller's metrics
	others      map[Key]map[Rival]struct{}
	ownTargets  map[Rival]Key                              // of our GPUAutoscalers
	autoscalers map[Key]map[string]*v1alpha1.GPUAutoscaler // by name
}

// NewRivals returns an empty index.
func NewRivals() *Rivals {
	return &Rivals{
		targets: map[Rival]Key{}, uids: map[Rival]types.UID{}, hpas: map[Rival]view.HPA{}, others: map[Key]map[Rival]struct{}{},
		ownTargets: map[Rival]Key{}, autoscalers: map[Key]map[string]*v1alpha1.GPUAutoscaler{},
	}
}

// Set sets the target of an object of another autoscaler, or deletes the object if it is
// gone, and returns its previous target.
func (x *Rivals) Set(r Rival, k Key, gone bool) (before Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.set(r, k, gone)
}

// SetHPA is Set for a HorizontalPodAutoscaler. shown is what HPAs returns of it; nil: nothing.
func (x *Rivals) SetHPA(h *autoscalingv2.HorizontalPodAutoscaler, shown *view.HPA, gone bool) (before, after Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r, after := OfHPA(h)
	delete(x.hpas, r)
	if x.uids[r] = h.UID; gone {
		delete(x.uids, r)
	} else if shown != nil {
		x.hpas[r] = *shown
	}
	return x.set(r, after, gone), after
}

// HPAs returns what is shown of HorizontalPodAutoscalers: those with a problem first, then by name.
func (x *Rivals) HPAs() []view.HPA {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.SortedFunc(maps.Values(x.hpas), func(a, b view.HPA) int {
		return cmp.Or(cmp.Compare(min(len(b.Problem), 1), min(len(a.Problem), 1)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (x *Rivals) set(r Rival, k Key, gone bool) (before Key) {
	before = x.targets[r]
	delete(x.others[before], r)
	if len(x.others[before]) == 0 {
		delete(x.others, before)
	}
	delete(x.targets, r)
	if gone {
		return before
	}
	x.targets[r] = k
	if x.others[k] == nil {
		x.others[k] = map[Rival]struct{}{}
	}
	x.others[k][r] = struct{}{}
	return before
}

// SetAutoscaler sets the target of a, and returns its previous and its new target. A
// GPUAutoscaler that is gone, invalid or being deleted has none.
func (x *Rivals) SetAutoscaler(a *v1alpha1.GPUAutoscaler, hasNone bool) (before, after Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	me := Rival{"GPUAutoscaler", a.Namespace, a.Name}
	before = x.ownTargets[me]
	delete(x.autoscalers[before], a.Name)
	if len(x.autoscalers[before]) == 0 {
		delete(x.autoscalers, before)
	}
	delete(x.ownTargets, me)
	if hasNone {
		return before, Key{}
	}
	ref := a.Spec.ScaleTargetRef
	k := KeyOf(a.Namespace, ref.APIVersion, ref.Kind, ref.Name)
	x.ownTargets[me] = k
	if x.autoscalers[k] == nil {
		x.autoscalers[k] = map[string]*v1alpha1.GPUAutoscaler{}
	}
	x.autoscalers[k][a.Name] = a
	return before, k
}

// Autoscalers returns the GPUAutoscalers whose scaleTargetRef is this target.
func (x *Rivals) Autoscalers(k Key) []*v1alpha1.GPUAutoscaler {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*v1alpha1.GPUAutoscaler, 0, len(x.autoscalers[k]))
	for _, a := range x.autoscalers[k] {
		out = append(out, a)
	}
	return out
}

// Of returns another object that sets the replicas of a's target. Of two valid
// GPUAutoscalers the older one owns the target. A GPUAutoscaler that only advises
// neither has a rival nor is one, and a HorizontalPodAutoscaler of its own is none.
func (x *Rivals) Of(a *v1alpha1.GPUAutoscaler, k Key, own ...types.UID) (Rival, bool) {
	if a.Spec.Actuation == v1alpha1.ActuationAdvise {
		return Rival{}, false
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	others := slices.DeleteFunc(slices.Collect(maps.Keys(x.others[k])), func(r Rival) bool { return slices.Contains(own, x.uids[r]) })
	if len(others) > 0 {
		return slices.MinFunc(others, func(a, b Rival) int {
			return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
		}), true
	}
	for _, b := range x.autoscalers[k] {
		if b.Name != a.Name && b.Spec.Actuation != v1alpha1.ActuationAdvise && isOlder(b, a) {
			return Rival{"GPUAutoscaler", b.Namespace, b.Name}, true
		}
	}
	return Rival{}, false
}

func isOlder(a, b *v1alpha1.GPUAutoscaler) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) < 0
}
