// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"slices"
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
)

// PodDeletionCost is the annotation by which a ReplicaSet selects the pods to delete.
const PodDeletionCost = corev1.PodDeletionCost

// The bounds of what is kept of an object. The API server allows 1.5 MiB.
const (
	maxLabels       = weight.MostLabels     // of an object
	maxLabelBytes   = weight.MostLabelBytes // of an object's keys and values
	maxName         = 253                   // bytes of a name, a kind or an API version
	maxNumber       = 11                    // bytes of an annotation that is a number of 32 bits
	maxContainers   = 64                    // of a pod, with ports or GPUs
	maxPorts        = 64                    // of a container
	maxGPUResources = 16                    // of a container
	maxClaims       = 64                    // of a pod
	maxRequests     = 64                    // of a template of resource claims, and alternatives of a request
	maxMetrics      = 8                     // of a HorizontalPodAutoscaler, and its conditions
	maxMessage      = 768                   // bytes of a condition's message
)

// UnreadNote says what gpu.UnreadLabels means for the author of an object.
var UnreadNote = fmt.Sprintf("more than %d labels, or more than %d bytes of them: the labels are not read, and no selector of GPUPilot selects the object", maxLabels, maxLabelBytes)

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
		case *resourcev1.ResourceClaimTemplate:
			return slimTemplate(o), nil
		case *appsv1.Deployment:
			slim := &appsv1.Deployment{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.DeploymentSpec{
				Replicas: o.Spec.Replicas, Selector: slimSelector(o.Spec.Selector), Template: corev1.PodTemplateSpec{Spec: slimTemplateSpec(&o.Spec.Template.Spec, more)},
			}}
			for _, c := range o.Status.Conditions {
				if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue { // such as for a ResourceQuota
					c.Reason, c.Message = excerpt.Of(c.Reason, maxName), excerpt.Of(c.Message, maxMessage)
					slim.Status.Conditions = []appsv1.DeploymentCondition{c}
				}
			}
			return slim, nil
		case *appsv1.StatefulSet:
			return &appsv1.StatefulSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.StatefulSetSpec{
				Replicas: o.Spec.Replicas, Ordinals: o.Spec.Ordinals, Selector: slimSelector(o.Spec.Selector), Template: corev1.PodTemplateSpec{Spec: slimTemplateSpec(&o.Spec.Template.Spec, more)},
			}}, nil
		case *policyv1.PodDisruptionBudget:
			return slimBudget(o), nil
		case *appsv1.ReplicaSet:
			return &appsv1.ReplicaSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.ReplicaSetSpec{Selector: slimSelector(o.Spec.Selector)}}, nil
		case *batchv1.Job:
			return &batchv1.Job{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: batchv1.JobSpec{Selector: slimSelector(o.Spec.Selector)}}, nil
		case *autoscalingv2.HorizontalPodAutoscaler:
			return slimHPA(o), nil
		case *metav1.PartialObjectMetadata:
			return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: slimMeta(&o.ObjectMeta)}, nil
		}
		return strip(obj)
	}
}

// slimMeta keeps the identity of an object, its labels and its controller.
func slimMeta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Labels: slimLabels(m.Labels)}
	if owner := controllerOf(m); owner != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	return slim
}

// controllerOf returns the owner reference of an object's controller; nil: there is none,
// or its names are longer than those of objects. The API server does not check that.
func controllerOf(m metav1.Object) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(m)
	if owner == nil || max(len(owner.APIVersion), len(owner.Kind), len(owner.Name), len(owner.UID)) > maxName {
		return nil
	}
	return owner
}

// slimLabels returns an object's labels. If they exceed the bounds, gpu.UnreadLabels
// replaces them: a part of them would match selectors that exclude a label.
func slimLabels(set map[string]string) map[string]string {
	size := 0
	for key, value := range set {
		size += len(key) + len(value)
	}
	if len(set) > maxLabels || size > maxLabelBytes {
		return map[string]string{gpu.UnreadLabels: "true"}
	}
	return set
}

// slimSelector returns a workload's selector; an invalid one if it is larger than the
// labels of any object that is read.
func slimSelector(s *metav1.LabelSelector) *metav1.LabelSelector {
	if s == nil {
		return nil
	}
	if err := policy.WeighSelector(s); err != nil {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: gpu.UnreadLabels, Operator: metav1.LabelSelectorOperator(err.Error())}}}
	}
	return s
}

// slimHPA keeps the target of a HorizontalPodAutoscaler. Of one that reads metrics APIs it also keeps the bounds, the status,
// and the name, target and value of these metrics: as External, whatever their type is.
func slimHPA(h *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	slim := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: slimMeta(&h.ObjectMeta)}
	spec, status := &slim.Spec, &slim.Status
	if ref := h.Spec.ScaleTargetRef; max(len(ref.APIVersion), len(ref.Kind), len(ref.Name)) <= maxName {
		spec.ScaleTargetRef = ref
	}
	for i := range atMost(h.Spec.Metrics, maxMetrics) {
		var s autoscalingv2.MetricStatus
		if i < len(h.Status.CurrentMetrics) {
			s = h.Status.CurrentMetrics[i]
		}
		m, kept, now := &h.Spec.Metrics[i], &autoscalingv2.ExternalMetricSource{}, &autoscalingv2.ExternalMetricStatus{}
		kind := autoscalingv2.PodsMetricSourceType // of custom metrics
		if m.Type == autoscalingv2.ExternalMetricSourceType {
			kind = m.Type // a slim object, which may be given again, has only that
		}
		switch {
		case m.Pods != nil:
			if kept.Metric.Name, kept.Target = m.Pods.Metric.Name, m.Pods.Target; s.Pods != nil {
				now.Current = s.Pods.Current
			}
		case m.Object != nil:
			if kept.Metric.Name, kept.Target = m.Object.Metric.Name, m.Object.Target; s.Object != nil {
				now.Current = s.Object.Current
			}
		case m.External != nil:
			if kept.Metric.Name, kept.Target = m.External.Metric.Name, m.External.Target; s.External != nil {
				now.Current = s.External.Current
			}
		default:
			continue
		}
		kept.Metric.Name, kept.Target.Type = excerpt.Of(kept.Metric.Name, maxName), ""
		spec.Metrics = append(spec.Metrics, autoscalingv2.MetricSpec{Type: kind, External: kept})
		status.CurrentMetrics = append(status.CurrentMetrics, autoscalingv2.MetricStatus{External: now})
	}
	if spec.Metrics == nil {
		return slim
	}
	spec.MinReplicas, spec.MaxReplicas = h.Spec.MinReplicas, h.Spec.MaxReplicas
	status.CurrentReplicas, status.DesiredReplicas = h.Status.CurrentReplicas, h.Status.DesiredReplicas
	for _, c := range atMost(h.Status.Conditions, maxMetrics) {
		status.Conditions = append(status.Conditions, autoscalingv2.HorizontalPodAutoscalerCondition{
			Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), Message: excerpt.Of(c.Message, maxMessage),
		})
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
			slim.Status.Conditions = []corev1.NodeCondition{{
				Type: c.Type, Status: c.Status, Reason: excerpt.Of(c.Reason, maxPodReason), Message: excerpt.Of(c.Message, maxPodMessage), LastTransitionTime: c.LastTransitionTime,
			}}
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

// slimTemplate keeps the requested devices of a template of resource claims.
func slimTemplate(t *resourcev1.ResourceClaimTemplate) *resourcev1.ResourceClaimTemplate {
	slim := &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{
		Namespace: t.Namespace, Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion,
	}}
	for _, r := range atMost(t.Spec.Spec.Devices.Requests, maxRequests) {
		kept := resourcev1.DeviceRequest{Name: r.Name}
		if e := r.Exactly; e != nil {
			kept.Exactly = &resourcev1.ExactDeviceRequest{DeviceClassName: e.DeviceClassName, Count: e.Count}
		}
		for _, a := range atMost(r.FirstAvailable, maxRequests) {
			kept.FirstAvailable = append(kept.FirstAvailable, resourcev1.DeviceSubRequest{DeviceClassName: a.DeviceClassName, Count: a.Count})
		}
		slim.Spec.Spec.Devices.Requests = append(slim.Spec.Spec.Devices.Requests, kept)
	}
	return slim
}

// atMost returns the first elements of a list, in memory of its own if it is cut.
func atMost[T any](list []T, n int) []T {
	if len(list) > n {
		return slices.Clone(list[:n])
	}
	return list
}

// slimPod keeps the fields of a pod that the controller uses. Pods take the largest
// part of the controller's memory.
func slimPod(pod *corev1.Pod, more []string) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			Labels: slimLabels(pod.Labels), CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp,
		},
		Spec: slimSpec(&pod.Spec, more),
		Status: corev1.PodStatus{
			Phase: pod.Status.Phase, PodIP: pod.Status.PodIP, HostIP: pod.Status.HostIP,
			ResourceClaimStatuses: atMost(pod.Status.ResourceClaimStatuses, maxClaims),
		},
	}
	if len(pod.Status.HostIPs) > 1 { // the first is HostIP
		slim.Status.HostIPs = pod.Status.HostIPs
	}
	slim.OwnerReferences = slimOwner(pod)
	for _, key := range [...]string{PodDeletionCost, replica.SizeAnnotation} {
		if value, ok := pod.Annotations[key]; ok && len(value) <= maxNumber {
			if slim.Annotations == nil {
				slim.Annotations = map[string]string{}
			}
			slim.Annotations[key] = value
		}
	}
	if owner := controllerOf(pod); owner != nil && holdsGPUs(slim) {
		slim.OwnerReferences = []metav1.OwnerReference{*owner} // for kube_pod_owner
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady || c.Type == corev1.PodScheduled || c.Type == v1alpha1.ReadinessGate && slim.Spec.ReadinessGates != nil {
			slim.Status.Conditions = append(slim.Status.Conditions, slimCondition(c))
		}
	}
	slim.Status.InitContainerStatuses = stuckContainer(pod.Status.InitContainerStatuses)
	if slim.Status.InitContainerStatuses == nil {
		slim.Status.ContainerStatuses = stuckContainer(pod.Status.ContainerStatuses)
	}
	return slim
}

// slimSpec keeps of a pod's spec where the pod runs, its ports and its GPUs.
func slimSpec(spec *corev1.PodSpec, more []string) corev1.PodSpec {
	slim := corev1.PodSpec{NodeName: spec.NodeName, HostNetwork: spec.HostNetwork, ResourceClaims: atMost(spec.ResourceClaims, maxClaims)}
	if replica.Gated(spec) {
		slim.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: v1alpha1.ReadinessGate}}
	}
	for i := range spec.Containers {
		c := slimContainer(&spec.Containers[i], more)
		if (c.Ports != nil || c.Resources.Limits != nil || c.Resources.Claims != nil) && len(slim.Containers) < maxContainers {
			slim.Containers = append(slim.Containers, c)
		}
	}
	for i := range spec.InitContainers {
		c := slimContainer(&spec.InitContainers[i], more)
		c.RestartPolicy = spec.InitContainers[i].RestartPolicy
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		if (c.Resources.Limits != nil || sidecar && c.Ports != nil) && len(slim.InitContainers) < maxContainers {
			slim.InitContainers = append(slim.InitContainers, c)
		}
	}
	return slim
}

// slimTemplateSpec also keeps how long pods take to stop.
func slimTemplateSpec(spec *corev1.PodSpec, more []string) corev1.PodSpec {
	slim := slimSpec(spec, more)
	slim.TerminationGracePeriodSeconds = spec.TerminationGracePeriodSeconds
	for i := range spec.Containers {
		preStop, own := replica.StopTimes(&spec.Containers[i])
		at := slices.IndexFunc(slim.Containers, func(c corev1.Container) bool { return c.Name == spec.Containers[i].Name })
		if at >= 0 && preStop > 0 {
			slim.Containers[at].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: preStop}}}
		}
		if at >= 0 && own > 0 {
			slim.Containers[at].Args = []string{fmt.Sprintf("--shutdown-timeout=%d", own)}
		}
	}
	return slim
}

// slimBudget keeps which pods a PodDisruptionBudget covers, and how many of them it allows
// to be disrupted.
func slimBudget(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudget {
	slim := &policyv1.PodDisruptionBudget{ObjectMeta: slimMeta(&b.ObjectMeta), Spec: policyv1.PodDisruptionBudgetSpec{Selector: slimSelector(b.Spec.Selector)}}
	slim.Generation = b.Generation
	slim.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Status.ObservedGeneration, DisruptionsAllowed: b.Status.DisruptionsAllowed}
	return slim
}

// holdsGPUs reports whether a pod of slimPod requests GPUs.
func holdsGPUs(slim *corev1.Pod) bool {
	limits := func(c corev1.Container) bool { return c.Resources.Limits != nil }
	return len(slim.Spec.ResourceClaims) > 0 || slices.ContainsFunc(slim.Spec.InitContainers, limits) || slices.ContainsFunc(slim.Spec.Containers, limits)
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

// someClaim stands for the claims of any container: only whether it has some is read.
var someClaim = []corev1.ResourceClaim{{}}

func slimContainer(c *corev1.Container, more []string) corev1.Container {
	slim := corev1.Container{
		Name: c.Name, Ports: atMost(c.Ports, maxPorts), Resources: corev1.ResourceRequirements{Limits: slimResources(c.Resources.Limits, more)},
	}
	if c.Resources.Claims != nil {
		slim.Resources.Claims = someClaim
	}
	return slim
}

// slimResources keeps the GPU resources of a list; nil if there are none.
func slimResources(list corev1.ResourceList, more []string) (slim corev1.ResourceList) {
	for name, q := range list {
		if gpu.IsResource(string(name), more) && len(slim) < maxGPUResources {
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
	owner := controllerOf(pod)
	if owner == nil {
		return nil
	}
	return []metav1.OwnerReference{{
		APIVersion: unique.Make(owner.APIVersion).Value(), Kind: unique.Make(owner.Kind).Value(),
		Name: unique.Make(owner.Name).Value(), UID: unique.Make(owner.UID).Value(), Controller: owner.Controller,
	}}
}
