// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/usage"
)

// DesiredReplicas is what a GPUAutoscaler decided last.
type DesiredReplicas struct {
	Replicas int32
	At       time.Time
}

// DesiredReplicas returns the last decision of a GPUAutoscaler. The error is
// usage.ErrUnknownWorkload if there is no such GPUAutoscaler, and usage.ErrNoValue, with
// the reason, while it makes no decisions. With actuation: HPA it is the leader's decision,
// whichever replica is asked.
func (c *Controller) DesiredReplicas(namespace, name string) (DesiredReplicas, error) {
	c.mu.RLock()
	w := c.workloads[types.NamespacedName{Namespace: namespace, Name: name}]
	c.mu.RUnlock()
	if w == nil {
		return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s does not exist", usage.ErrUnknownWorkload, namespace, name)
	}
	if a := w.object.Load(); a.Spec.Actuation == v1alpha1.ActuationHPA && !c.deps.Leading() {
		if s := &a.Status; s.DesiredReplicas != nil && s.LastDecision != nil && time.Since(s.LastDecision.Time.Time) < 2*maxStatusInterval {
			return DesiredReplicas{*s.DesiredReplicas, s.LastDecision.Time.Time}, nil
		}
		return DesiredReplicas{}, fmt.Errorf("%w: the leader's status of GPUAutoscaler %s/%s has no decision", usage.ErrNoValue, namespace, name)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.metered.Counts.OK {
		return DesiredReplicas{w.metered.Counts.Desired, w.metered.Counts.At}, nil
	}
	return DesiredReplicas{}, fmt.Errorf("%w: GPUAutoscaler %s/%s makes no decision now%s", usage.ErrNoValue, namespace, name, w.obstacle())
}

// obstacle returns the reason why there is no decision, from the conditions. w.mu is
// held.
func (w *published) obstacle() string {
	for i := range w.metered.Conditions {
		if c := &w.metered.Conditions[i]; c.Status == metav1.ConditionFalse {
			return ": " + c.Message
		}
	}
	return ""
}

// AutoscalersOf returns the names of a namespace's GPUAutoscalers, sorted.
func (c *Controller) AutoscalersOf(namespace string) (out []string) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for key := range c.workloads {
		if key.Namespace == namespace {
			out = append(out, key.Name)
		}
	}
	slices.Sort(out)
	return out
}
