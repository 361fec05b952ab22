// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/autoscaler/shown"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// find returns the workload of a GPUAutoscaler; nil: there is none.
func (c *Controller) find(namespace, name string) *workload {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.workloads[types.NamespacedName{Namespace: namespace, Name: name}]
}

// History returns the recent decisions of one workload.
func (c *Controller) History(namespace, name string) (view.History, bool) {
	w := c.find(namespace, name)
	if w == nil {
		return view.History{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return view.History{Points: w.history.List()}, true
}

// Workload returns one workload in detail, without the decisions that have changed it.
func (c *Controller) Workload(namespace, name string) (out view.WorkloadDetail, ok bool) {
	w := c.find(namespace, name)
	if w == nil {
		return out, false
	}
	out.Time, out.MaxAge = time.Now(), c.cfg.MaxAge
	w.mu.Lock()
	out.Workload, out.Conditions, out.Spans = w.shown, shown.Conditions(w.metered.Conditions), w.spans.List()
	if d := out.Workload.Decision; d != nil {
		x := *d
		x.Inputs = w.inputs
		out.Workload.Decision = &x
	}
	w.mu.Unlock()
	if d := out.Workload.Decision; d != nil && d.Starting > 0 {
		out.Workload.StartingSince = c.startingSince(w)
	}
	out.Changes, _ = c.asked.Changes(w.object.Load())
	return out, true
}

// Device returns one device of a node in detail.
func (c *Controller) Device(node, uuid string) (view.Device, bool) {
	return shown.Device(c.deps.Store, node, uuid, c.deps.Pods, time.Now(), c.cfg.MaxAge)
}
