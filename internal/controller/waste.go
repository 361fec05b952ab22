// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// warnOfWaste records one Event about signals that work against one another.
func (w *workload) warnOfWaste(r *report) {
	if w.wasteful || !w.shared.deps.Leading() {
		return
	}
	c := consistencyOf(r)
	if c.Reason != reasonWasteful {
		return
	}
	w.wasteful = true
	last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
	if last != nil && last.Reason == c.Reason && last.Message == c.Message {
		return // the controller before this one recorded it
	}
	w.shared.deps.Log.Warn("signals work against one another", "gpuautoscaler", w.key.String(), "why", c.Message)
	w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", clip(c.Message, maxMessage))
}
