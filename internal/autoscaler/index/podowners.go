// SPDX-License-Identifier: Apache-2.0

package index

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ownerOf returns the key of a pod's controller; zero: the pod is nil or has none.
func ownerOf(pod *corev1.Pod) ownerKey {
	if pod == nil {
		return ownerKey{}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		return ownerKey{pod.Namespace, owner.UID}
	}
	return ownerKey{}
}

// ownedPods is the pods of one controller.
type ownedPods struct {
	pods    []*corev1.Pod // sorted by name
	version uint64        // of Pods.changes at the last change of the list
}

// updateOwned replaces a pod's older version in the list of its controller. old or pod
// may be nil. p.mu is held.
func (p *Pods) updateOwned(old, pod *corev1.Pod) {
	before, after := ownerOf(old), ownerOf(pod)
	if before.uid != "" && before == after {
		x := p.byOwner[before]
		if at, found := findPod(x.pods, old.Name); found {
			x.pods[at], x.version = pod, p.changes
			return
		}
	}
	if x := p.byOwner[before]; before.uid != "" && x != nil {
		if at, found := findPod(x.pods, old.Name); found {
			x.pods, x.version = slices.Delete(x.pods, at, at+1), p.changes
		}
		if len(x.pods) == 0 {
			delete(p.byOwner, before)
		}
	}
	if after.uid != "" {
		x := p.byOwner[after]
		if x == nil {
			x = &ownedPods{}
			p.byOwner[after] = x
		}
		at, _ := findPod(x.pods, pod.Name)
		x.pods, x.version = slices.Insert(x.pods, at, pod), p.changes
	}
}

// ownedVersion returns the version of the list of a controller's pods; 0: it has none.
// Two lists of one version are the same.
func (p *Pods) ownedVersion(namespace string, uid types.UID) uint64 {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if x := p.byOwner[ownerKey{namespace, uid}]; x != nil {
		return x.version
	}
	return 0
}

func findPod(list []*corev1.Pod, name string) (at int, found bool) {
	return slices.BinarySearchFunc(list, name, func(x *corev1.Pod, name string) int { return strings.Compare(x.Name, name) })
}

// AppendOwned appends the pods of a namespace whose controller has this UID, sorted by
// name. Whoever creates a pod may name any controller: the caller checks the selector.
func (p *Pods) AppendOwned(dst []*corev1.Pod, namespace string, uid types.UID) []*corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if x := p.byOwner[ownerKey{namespace, uid}]; x != nil {
		dst = append(dst, x.pods...)
	}
	return dst
}
