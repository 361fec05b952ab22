// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// retryEvery is the interval at which a failed write is retried: a restart of the API
// server takes seconds.
const retryEvery = 200 * time.Millisecond

// patch writes the pod's status. It retries until that succeeds, the pod is gone or ctx
// is done.
func (p *podRun) patch(ctx context.Context, status corev1.PodStatus) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.pod.UID}, // not another pod of this name
		"status":   status,
	})
	if err != nil {
		panic(err) // a status that cannot be encoded is a bug
	}
	p.retry(ctx, func() error {
		_, err := p.nodes.client.CoreV1().Pods(p.pod.Namespace).Patch(ctx, p.pod.Name,
			types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	})
}

func (p *podRun) retry(ctx context.Context, write func() error) {
	for {
		err := write()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || ctx.Err() != nil {
			return
		}
		p.nodes.log.Warn("pod not written", "pod", p.pod.Name, "err", err)
		if !wait(ctx, retryEvery) {
			return
		}
	}
}

// report writes the status of now.
func (p *podRun) report(ctx context.Context, ready bool) {
	p.writing.Lock()
	defer p.writing.Unlock()
	p.patch(ctx, p.status(ready))
}

// observeGates notes whether the pod's readiness gates are open. Nodes.mu is held.
func (p *podRun) observeGates(pod *corev1.Pod) {
	closed := false
	for _, g := range pod.Spec.ReadinessGates {
		closed = closed || !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == g.ConditionType && c.Status == corev1.ConditionTrue
		})
	}
	if closed == p.closed {
		return
	}
	p.closed = closed
	select {
	case p.regate <- struct{}{}:
	default:
	}
}

// followGates writes the status whenever a readiness gate opens or closes.
func (p *podRun) followGates(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.regate:
			p.report(ctx, p.current() == serving)
		}
	}
}

// status returns the status that a kubelet reports for the pod now.
func (p *podRun) status(ready bool) corev1.PodStatus {
	p.nodes.mu.Lock()
	defer p.nodes.mu.Unlock()
	now := metav1.Now()
	truth := corev1.ConditionFalse
	if ready {
		truth = corev1.ConditionTrue
	}
	inService := truth
	if p.closed {
		inService = corev1.ConditionFalse
	}
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, LastTransitionTime: now}
	}
	start := metav1.NewTime(p.started)
	s := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &start,
		HostIP: p.node.addr.String(), HostIPs: []corev1.HostIP{{IP: p.node.addr.String()}},
		PodIP: p.addr.String(), PodIPs: []corev1.PodIP{{IP: p.addr.String()}},
		Conditions: []corev1.PodCondition{
			condition(corev1.PodInitialized, corev1.ConditionTrue),
			condition(corev1.PodReadyToStartContainers, corev1.ConditionTrue),
			condition(corev1.ContainersReady, truth), condition(corev1.PodReady, inService),
		},
	}
	for _, c := range p.pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, p.container(c, ready, now))
	}
	return s
}

func (p *podRun) container(c corev1.Container, ready bool, now metav1.Time) corev1.ContainerStatus {
	running := p.phase != broken || p.process != nil
	s := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, ImageID: c.Image, ContainerID: "sim://" + string(p.pod.UID) + "/" + c.Name,
		Ready: ready, Started: &running, RestartCount: p.restarts,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(p.started)}},
	}
	if !running {
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: p.exit.code, Reason: p.exit.reason(), Message: p.exit.message, StartedAt: metav1.NewTime(p.started), FinishedAt: now, ContainerID: s.ContainerID,
		}}
	}
	return s
}

// rejected returns the status that a kubelet reports for a pod whose devices it lacks.
func (p *podRun) rejected() corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "UnexpectedAdmissionError",
		Message: "Allocate failed due to requested number of devices unavailable for " + GPUResource,
	}
}
