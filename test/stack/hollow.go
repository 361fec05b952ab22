// SPDX-License-Identifier: Apache-2.0

package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/simnode"
)

// hollowArgs are the flags of a control plane with hollow nodes: nobody else may give nodes or their pods up.
var hollowArgs = map[string][]string{
	cluster.ControllerManager: {"--controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller,-taint-eviction-controller"},
}

// JoinHollow registers a hollow node: it is ready, and nothing but its objects stands for it. A node of that name is kept.
func (s *Stack) JoinHollow(ctx context.Context, name string, gpus int) error {
	amounts := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("128"), corev1.ResourceMemory: resource.MustParse("2Ti"), corev1.ResourcePods: resource.MustParse("110"),
		simnode.GPUResource: *resource.NewQuantity(int64(gpus), resource.DecimalSI),
	}
	err := s.Client.Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Capacity: amounts, Allocatable: amounts,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("register node %s: %w", name, err)
	}
	return nil
}

// StartHollowAgent makes a pod whose page the caller serves, as the agent of a hollow node. serve is called with its name
// before the pod is ready.
func (s *Stack) StartHollowAgent(ctx context.Context, node string, at netip.AddrPort, serve func(pod string)) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, GenerateName: "agent-", Labels: map[string]string{"app.kubernetes.io/name": "gpupilot-agent"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "agent", Image: "agent", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: int32(at.Port())}},
		}}},
	}
	if err := s.Client.Create(ctx, pod); err != nil {
		return fmt.Errorf("start the agent of node %s: %w", node, err)
	}
	serve(pod.Name)
	return s.RunHollow(ctx, pod, at.Addr())
}

// RunHollow reports a pod of a hollow node as running and ready.
func (s *Stack) RunHollow(ctx context.Context, pod *corev1.Pod, ip netip.Addr) error {
	now := metav1.Now()
	condition := func(kind corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // not another pod of this name
		"status": corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip.String(), PodIPs: []corev1.PodIP{{IP: ip.String()}}, StartTime: &now,
			Conditions: []corev1.PodCondition{condition(corev1.PodInitialized), condition(corev1.ContainersReady), condition(corev1.PodReady)},
		},
	})
	if err != nil {
		return err
	}
	return s.Client.Status().Patch(ctx, pod, client.RawPatch(types.StrategicMergePatchType, patch))
}
