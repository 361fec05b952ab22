// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"slices"
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// PodDeletionCost is the annotation by which a ReplicaSet selects the pods to delete.
const PodDeletionCost = corev1.PodDeletionCost

// Slim returns a transform that drops unused fields of cached objects. more
// are names of resources that count GPUs, as in gpu.IsResource.
func Slim(more []string) toolscache.TransformFunc {
	strip := cache.TransformStripManagedFields()
	return func(obj any) (any, error) {
		switch o := obj.(type) {
		case *corev1.Pod:
			return slimPod(o, more), nil
		case *corev1.Node:
			return slimNode(o, more), nil
		case *resourcev1.ResourceClaim:
			return slimClaim(o), nil
		case *appsv1.ReplicaSet:
			return &appsv1.ReplicaSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Selector: o.Spec.Selector}}, nil
		case *batchv1.Job:
			return &batchv1.Job{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: batchv1.JobSpec{Selector: o.Spec.Selector}}, nil
		case *metav1.PartialObjectMetadata:
			return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: slimMeta(&o.ObjectMeta)}, nil
		}
		return strip(obj)
	}
}

// slimMeta keeps the identity of an object, its labels and its controller.
func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: m.Labels}
	if owner := metav1.GetControllerOfNoCopy(m); owner != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return slim
}

// slimNode keeps of a node how many GPUs it has, the labels of keptLabels, and its
// condition GPUHealthy.
func slimNode(node *corev1.Node, more []string) *corev1.Node {
	slim := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Status:     corev1.NodeStatus{Capacity: slimResources(node.Status.Capacity, more), Allocatable: slimResources(node.Status.Allocatable, more)},
	}
	for _, key := range keptLabels() {
		if value, ok := node.Labels[key]; ok {
			if slim.Labels == nil {
				slim.Labels = map[string]string{}
			}
			slim.Labels[key] = value
		}
	}
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; string(c.Type) == gpu.NodeHealthCondition {
			slim.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), Message: excerpt.Of(c.Message, maxPodMessage)}}
		}
	}
	return slim
}

// keptLabels returns the labels of a node's pool and GPU model, and those by which GPU
// nodes are found.
func keptLabels() []string {
	keys := slices.Concat(gpu.NodePoolLabels(), gpu.ModelLabels())
	for _, sign := range gpu.NodeSigns() {
		keys = append(keys, sign.Label)
	}
	return keys
}

// slimClaim keeps the allocated devices of a resource claim.
func slimClaim(claim *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	slim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}}
	if a := claim.Status.Allocation; a != nil {
		slim.Status.Allocation = &resourcev1.AllocationResult{}
		for _, r := range a.Devices.Results {
			slim.Status.Allocation.Devices.Results = append(slim.Status.Allocation.Devices.Results,
				resourcev1.DeviceRequestAllocationResult{Driver: r.Driver, Pool: r.Pool, Device: r.Device})
		}
	}
	return slim
}

// slimPod keeps the fields of a pod that the controller uses. Pods take the largest
// part of the controller's memory.
func slimPod(pod *corev1.Pod, more []string) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: pod.Labels, CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: corev1.PodSpec{NodeName: pod.Spec.NodeName, HostNetwork: pod.Spec.HostNetwork, ResourceClaims: pod.Spec.ResourceClaims},
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP, ResourceClaimStatuses: pod.Status.ResourceClaimStatuses,
		},
	}
	if len(pod.Status.HostIPs) > 1 { // the first is HostIP
		slim.Status.HostIPs = pod.Status.HostIPs
	}
	slim.OwnerReferences = slimOwner(pod)
	if cost, ok := pod.Annotations[PodDeletionCost]; ok {
		slim.Annotations = map[string]string{PodDeletionCost: cost}
	}
	for i := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, slimContainer(&pod.Spec.Containers[i], more))
	}
	for i := range pod.Spec.InitContainers {
		c := slimContainer(&pod.Spec.InitContainers[i], more)
		if c.RestartPolicy = pod.Spec.InitContainers[i].RestartPolicy; c.Resources.Limits != nil {
			slim.Spec.InitContainers = append(slim.Spec.InitContainers, c)
		}
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil && holdsGPUs(slim) {
		slim.OwnerReferences = []metav1.OwnerReference{*owner} // for kube_pod_owner
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.PodScheduled {
			slim.Status.Conditions = append(slim.Status.Conditions, slimCondition(c))
		}
	}
	slim.Status.InitContainerStatuses = stuckContainer(pod.Status.InitContainerStatuses)
	if slim.Status.InitContainerStatuses == nil {
		slim.Status.ContainerStatuses = stuckContainer(pod.Status.ContainerStatuses)
	}
	return slim
}

// holdsGPUs reports whether a pod of slimPod requests GPUs.
func holdsGPUs(slim *corev1.Pod) bool {
	limits := func(c corev1.Container) bool { return c.Resources.Limits != nil }
	return len(slim.Spec.ResourceClaims) > 0 || len(slim.Spec.InitContainers) > 0 || slices.ContainsFunc(slim.Spec.Containers, limits)
}

// The bounds of reasons and messages of the scheduler and the kubelet, in bytes. A
// GPUAutoscaler's status shows 200 bytes of a message.
const (
	maxPodReason  = 64
	maxPodMessage = 256
)

// slimCondition keeps the message only if it is the scheduler's reason why no node
// fits the pod.
func slimCondition(c *corev1.PodCondition) corev1.PodCondition {
	slim := corev1.PodCondition{
		Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), LastTransitionTime: c.LastTransitionTime,
	}
	if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
		slim.Message = excerpt.Of(c.Message, maxPodMessage)
	}
	return slim
}

// stuckContainer returns the first container that waits for a reason other than the
// normal steps of a start; nil: there is none.
func stuckContainer(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	for i := range all {
		w := all[i].State.Waiting
		if w == nil || w.Reason == "" || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" {
			continue
		}
		return []corev1.ContainerStatus{{Name: all[i].Name, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: excerpt.Of(w.Reason, maxPodReason), Message: excerpt.Of(w.Message, maxPodMessage)},
		}}}
	}
	return nil
}

func slimContainer(c *corev1.Container, more []string) corev1.Container {
	return corev1.Container{
		Name: c.Name, Ports: c.Ports, Resources: corev1.ResourceRequirements{Limits: slimResources(c.Resources.Limits, more)},
	}
}

// slimResources keeps the GPU resources of a list; nil if there are none.
func slimResources(list corev1.ResourceList, more []string) (slim corev1.ResourceList) {
	for name, q := range list {
		if gpu.IsResource(string(name), more) {
			if slim == nil {
				slim = corev1.ResourceList{}
			}
			slim[name] = q
		}
	}
	return slim
}

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
