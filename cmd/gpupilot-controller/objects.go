// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/gpupilot/gpupilot/internal/autoscaler/index"
)

// makeObjects makes the index of the objects that have custom metrics beside pods.
func (p *program) makeObjects() {
	p.objects = index.NewObjects(index.ObjectsConfig{
		Watch: p.clients.Watch, Live: p.clients.Live, Mapper: p.clients.Mapper, Log: p.log,
	})
}

// podsOf appends the pods of a workload.
func (p *program) podsOf(ctx context.Context, dst []*corev1.Pod, r schema.GroupResource, namespace, name string) ([]*corev1.Pod, error) {
	return p.objects.PodsOf(ctx, p.pods, dst, r, namespace, name)
}

// workloadOf returns the outermost controller of a pod.
func (p *program) workloadOf(pod *corev1.Pod) (kind, name string, ok bool) {
	w, ok := p.objects.WorkloadOf(p.pods, pod)
	return w.Kind, w.Name, ok
}
