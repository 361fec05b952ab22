// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// recordInconsistency logs and records one Event about conflicting signals.
func (w *workload) recordInconsistency(r *report) {
	if w.inconsistencyRecorded || !w.shared.deps.Leading() {
		return
	}
	c := consistencyCondition(r)
	if c.Reason != reasonWasteful {
		return
	}
	w.inconsistencyRecorded = true
	last := meta.FindStatusCondition(r.object.Status.Conditions, c.Type)
	if last != nil && last.Reason == c.Reason && last.Message == c.Message {
		return // the previous leader recorded it
	}
	w.shared.deps.Log.Warn("signals conflict with one another", "gpuautoscaler", w.key.String(), "why", c.Message)
	w.record(r.object, corev1.EventTypeWarning, c.Reason, "Observe", excerpt.Of(c.Message, maxMessage))
}
