// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

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

// wantInterval is how often it is checked whether a kind of workloads is served now.
const wantInterval = 30 * time.Second

// wantWorkloads has the objects between pods and their workloads watched, for the
// aggregates of workloads.
func (p *program) wantWorkloads(ctx context.Context) {
	if p.cfg.workloadMetrics == 0 {
		return
	}
	for {
		for _, r := range index.OwnerResources() {
			p.objects.Want(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wantInterval):
		}
	}
}
