// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// The resources whose pods are found by owner references.
var (
	deploymentsResource  = schema.GroupResource{Group: "apps", Resource: "deployments"}
	replicaSetsResource  = schema.GroupResource{Group: "apps", Resource: "replicasets"}
	statefulSetsResource = schema.GroupResource{Group: "apps", Resource: "statefulsets"}
	lwsResource          = schema.GroupResource{Group: "leaderworkerset.x-k8s.io", Resource: "leaderworkersets"}
)

// ownerResources returns the resources that WorkloadOf needs watched.
func ownerResources() []schema.GroupResource {
	return []schema.GroupResource{replicaSetsResource, statefulSetsResource, {Group: "batch", Resource: "jobs"}, lwsResource}
}

// maxOwners bounds the owners between a pod and its workload. A worker of a
// LeaderWorkerSet has the most: its StatefulSet, its leader, the leaders' StatefulSet
// and the LeaderWorkerSet.
const maxOwners = 4

// PodsOf appends the pods of a workload: those that its controllers own, and that its
// selector matches, in a fixed order. An owner reference alone proves nothing, because whoever creates a
// pod writes it. A controller gives up a pod that its selector does not match. The
// error is an API status error; NotFound if there is no such object.
func (o *Objects) PodsOf(ctx context.Context, pods *Pods, dst []*corev1.Pod, r schema.GroupResource, key types.NamespacedName) ([]*corev1.Pod, error) {
	object, err := o.Get(ctx, r, key.Namespace, key.Name)
	if err != nil || object == nil {
		return dst, err
	}
	switch r {
	case deploymentsResource:
		if _, err := o.synced(ctx, replicaSetsResource); err != nil {
			return dst, err
		}
		for _, rs := range o.childrenOf(object, replicaSetsResource) {
			dst = o.matches.append(dst, pods, object, rs)
		}
	case lwsResource:
		if _, err := o.synced(ctx, statefulSetsResource); err != nil {
			return dst, err
		}
		dst = o.appendGroups(dst, pods, object)
	default:
		dst = o.matches.append(dst, pods, object, object)
	}
	return dst, nil
}

// The bounds of the lists of pods that are remembered. A pod takes 8 bytes.
const (
	maxMatches     = 4096
	maxMatchedPods = 500_000
)

// matches remembers the pods of controllers that selectors match, until the pods or the
// objects change. Labels of thousands of pods are slow to match for each request.
type matches struct {
	mu      sync.Mutex
	byOwner map[matchKey]matched
	pods    int // in all lists
}

// matchKey identifies a workload and one of its controllers, which may be itself.
type matchKey struct {
	namespace            string
	workload, controller types.UID
}

// matched is the pods of one version of the objects, which are never changed, and of
// the list of pods.
type matched struct {
	workload, controller *Object
	version              uint64 // as Pods.ownedVersion
	pods                 []*corev1.Pod
}

// append appends the pods of a controller that its selector and the workload's match.
func (m *matches) append(dst []*corev1.Pod, pods *Pods, workload, controller *Object) []*corev1.Pod {
	k := matchKey{controller.Namespace, workload.UID, controller.UID}
	version := pods.ownedVersion(controller.Namespace, controller.UID) // before the pods are read
	m.mu.Lock()
	last, ok := m.byOwner[k]
	m.mu.Unlock()
	if ok && last.version == version && last.workload == workload && last.controller == controller {
		return append(dst, last.pods...)
	}
	list := appendMatching(nil, pods, controller.Namespace, controller.UID, controller.Selector)
	if workload != controller && workload.Selector != nil {
		list = slices.DeleteFunc(list, func(pod *corev1.Pod) bool { return !selects(workload.Selector, pod.Labels) })
	}
	m.set(k, matched{workload, controller, version, list})
	return append(dst, list...)
}

// set remembers a list. Without room, all are forgotten.
func (m *matches) set(k matchKey, x matched) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pods += len(x.pods) - len(m.byOwner[k].pods)
	if m.byOwner == nil || len(m.byOwner) >= maxMatches || m.pods > maxMatchedPods {
		m.byOwner, m.pods = map[matchKey]matched{}, len(x.pods)
	}
	m.byOwner[k] = x
}

// childrenOf returns the objects of a resource that an object's controller owns, and
// that its selector matches, sorted by name.
func (o *Objects) childrenOf(object *Object, r schema.GroupResource) []*Object {
	children := slices.DeleteFunc(o.AppendChildren(nil, object.Namespace, object.UID), func(c *Object) bool {
		return c.Resource != r || object.Selector != nil && !selects(object.Selector, c.Labels)
	})
	slices.SortFunc(children, func(a, b *Object) int { return strings.Compare(a.Name, b.Name) })
	return children
}

// appendGroups appends the pods of a LeaderWorkerSet: the leaders, which a StatefulSet
// of the set owns, and the workers, which a StatefulSet of their leader owns.
func (o *Objects) appendGroups(dst []*corev1.Pod, pods *Pods, lws *Object) []*corev1.Pod {
	mine := labels.SelectorFromSet(labels.Set{replica.SetLabel: lws.Name})
	first := len(dst)
	for _, leaders := range o.childrenOf(lws, statefulSetsResource) {
		dst = appendMatching(dst, pods, lws.Namespace, leaders.UID, leaders.Selector)
	}
	for _, leader := range slices.Clone(dst[first:]) {
		for _, workers := range o.AppendChildren(nil, lws.Namespace, leader.UID) {
			if workers.Resource == statefulSetsResource {
				dst = appendMatching(dst, pods, lws.Namespace, workers.UID, workers.Selector)
			}
		}
	}
	return slices.DeleteFunc(dst, func(pod *corev1.Pod) bool { return !selects(mine, pod.Labels) })
}

// appendMatching appends the pods of a controller that its selector matches. A
// controller without a known selector matches none.
func appendMatching(dst []*corev1.Pod, pods *Pods, namespace string, uid types.UID, selector labels.Selector) []*corev1.Pod {
	if selector == nil || uid == "" {
		return dst
	}
	first := len(dst)
	dst = pods.AppendOwned(dst, namespace, uid)
	kept := slices.DeleteFunc(dst[first:], func(pod *corev1.Pod) bool { return !selects(selector, pod.Labels) })
	return dst[:first+len(kept)]
}

// Workload identifies the outermost controller of a pod.
type Workload struct{ Kind, Name string }

// WorkloadOf returns the outermost controller of a pod that the index knows: of a
// Deployment's pod, the Deployment. For a pod whose controller is of another kind, it is
// that controller, by its name in the owner reference. ok is false for a pod without a
// controller, or whose controller's selector does not match it.
func (o *Objects) WorkloadOf(pods *Pods, pod *corev1.Pod) (w Workload, ok bool) {
	ref := metav1.GetControllerOfNoCopy(pod)
	if ref == nil {
		return w, false
	}
	w = Workload{ref.Kind, ref.Name}
	o.mu.RLock()
	defer o.mu.RUnlock()
	uid := ref.UID
	for range maxOwners {
		object := o.byUID[ownerKey{pod.Namespace, uid}]
		if object == nil {
			leader, found := pods.Get(pod.Namespace, w.Name)
			if !found || leader.UID != uid {
				return w, true
			}
			if ref = metav1.GetControllerOfNoCopy(leader); ref == nil {
				return w, true
			}
			w, uid = Workload{ref.Kind, ref.Name}, ref.UID
			continue
		}
		if uid == ownerOf(pod).uid && object.Selector != nil && !selects(object.Selector, pod.Labels) {
			return w, false
		}
		w.Name = object.Name
		if object.Owner == "" {
			return w, true
		}
		w, uid = Workload{object.OwnerKind, object.OwnerName}, object.Owner
	}
	return w, true
}
