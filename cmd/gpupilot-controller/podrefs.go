// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/controller"
	"github.com/gpupilot/gpupilot/internal/kube"
	"github.com/gpupilot/gpupilot/internal/metricsapi"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// podRefs are the pods as the metrics API wants them.
type podRefs struct{ pods *kube.Pods }

func ref(pod *corev1.Pod) metricsapi.PodRef {
	phase, _ := controller.PhaseOf(pod)
	return metricsapi.PodRef{Name: pod.Name, Serving: phase == scale.Serving && !controller.Finished(pod)}
}

// Select is metricsapi.Pods'.
func (r podRefs) Select(namespace string, selector labels.Selector) []metricsapi.PodRef {
	pods := r.pods.Select(namespace, selector)
	out := make([]metricsapi.PodRef, 0, len(pods))
	for _, pod := range pods {
		out = append(out, ref(pod))
	}
	return out
}

// Get is metricsapi.Pods'.
func (r podRefs) Get(namespace, name string) (metricsapi.PodRef, bool) {
	pod, ok := r.pods.Get(namespace, name)
	if !ok {
		return metricsapi.PodRef{}, false
	}
	return ref(pod), true
}
