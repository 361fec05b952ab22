// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slimOwner returns the owner reference of a pod's controller, without the strings of
// its own: the pods of a workload share them.
func slimOwner(pod *corev1.Pod) []metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return nil
	}
	return []metav1.OwnerReference{{
		APIVersion: unique.Make(owner.APIVersion).Value(), Kind: unique.Make(owner.Kind).Value(),
		Name: unique.Make(owner.Name).Value(), UID: unique.Make(owner.UID).Value(), Controller: owner.Controller,
	}}
}

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

// updateOwned replaces a pod's older version in the list of its controller. old or pod
// may be nil. p.mu is held.
func (p *Pods) updateOwned(old, pod *corev1.Pod) {
	before, after := ownerOf(old), ownerOf(pod)
	if before.uid != "" {
		list := p.byOwner[before]
		if at, found := findPod(list, old.Name); found {
			if before == after {
				list[at] = pod
				return
			}
			list = slices.Delete(list, at, at+1)
		}
		if p.byOwner[before] = list; len(list) == 0 {
			delete(p.byOwner, before)
		}
	}
	if after.uid != "" {
		at, _ := findPod(p.byOwner[after], pod.Name)
		p.byOwner[after] = slices.Insert(p.byOwner[after], at, pod)
	}
}

func findPod(list []*corev1.Pod, name string) (at int, found bool) {
	return slices.BinarySearchFunc(list, name, func(x *corev1.Pod, name string) int { return strings.Compare(x.Name, name) })
}

// AppendOwned appends the pods of a namespace whose controller has this UID, sorted by
// name. Whoever creates a pod may name any controller: the caller checks the selector.
func (p *Pods) AppendOwned(dst []*corev1.Pod, namespace string, uid types.UID) []*corev1.Pod {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return append(dst, p.byOwner[ownerKey{namespace, uid}]...)
}
