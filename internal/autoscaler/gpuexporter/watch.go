// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
)

// Watch requests a pass at each change of a GPUExporter, once the
// API server serves the kind, and of a node.
func (k *Keeper) Watch(ctx context.Context) {
	if k.deps.AwaitInstalled(ctx, Kind()) != nil {
		return
	}
	wake := func(any) { k.Wake() }
	h := toolscache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, _ any) { k.Wake() }, DeleteFunc: wake}
	if k.deps.Watch(ctx, Kind(), h) == nil {
		h.UpdateFunc = func(old, obj any) {
			if before, ok := old.(*corev1.Node); ok && sameGPUs(before, obj.(*corev1.Node)) {
				return // a heartbeat
			}
			k.Wake()
		}
		_ = k.deps.Watch(ctx, &corev1.Node{}, h) // the only possible error is that of ctx
	}
}

// sameGPUs reports whether two versions of a node have the same labels and resources, as
// far as the cache keeps them.
func sameGPUs(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Status.Capacity, b.Status.Capacity)
}
