// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The reasons of ConditionWindow.
const (
	reasonComplete    = "Complete"
	reasonMemoryLimit = "MemoryLimit" // the memory limit keeps the window short
	reasonTargetLimit = "TargetLimit" // the target exposes more than the bounds of one target
)

// limits caches the store's limited targets by place for one second.
type limits struct {
	mu      sync.Mutex
	asOf    time.Time
	byPlace map[string]*series.Limited
}

func (l *limits) byPlaceAt(now time.Time, store *series.Store) map[string]*series.Limited {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age := now.Sub(l.asOf); age >= 0 && age < time.Second {
		return l.byPlace
	}
	l.asOf, l.byPlace = now, nil
	for _, x := range store.Limited() {
		if l.byPlace == nil {
			l.byPlace = map[string]*series.Limited{}
		}
		place := discovery.NodePlace(x.Labels.Node)
		if x.Labels.Pod != "" {
			place = discovery.PodPlace(x.Labels.Namespace, x.Labels.Pod)
		}
		if l.byPlace[place] == nil {
			l.byPlace[place] = &x
		}
	}
	return l.byPlace
}

// limitedTarget returns the first limited target, by place, with samples of the
// workload's pods; nil if there is none.
func (w *workload) limitedTarget(now time.Time) *series.Limited {
	byPlace := w.shared.limits.byPlaceAt(now, w.shared.deps.Store)
	if len(byPlace) == 0 {
		return nil
	}
	first := ""
	for p := range w.routed {
		if byPlace[p] != nil && (first == "" || p < first) {
			first = p
		}
	}
	return byPlace[first]
}

// windowCondition returns ConditionWindow if a target is limited, or was before.
// While the same target is limited for the same reason, the message keeps its first
// numbers.
func windowCondition(r *report, base []metav1.Condition) []metav1.Condition {
	last := meta.FindStatusCondition(base, v1alpha1.ConditionWindow)
	x := r.limited
	if x == nil {
		if last == nil {
			return nil
		}
		return []metav1.Condition{{
			Type: v1alpha1.ConditionWindow, Status: metav1.ConditionTrue, Reason: reasonComplete, Message: "no target with samples of its pods is limited",
		}}
	}
	c := metav1.Condition{Type: v1alpha1.ConditionWindow, Status: metav1.ConditionFalse, Reason: reasonTargetLimit}
	if x.Short {
		c.Reason = reasonMemoryLimit
	}
	prefix := fmt.Sprintf("target %s ", excerpt.Of(x.Target, maxDetail))
	if last != nil && last.Reason == c.Reason && strings.HasPrefix(last.Message, prefix) {
		c.Message = last.Message
	} else {
		c.Message = excerpt.Of(prefix+x.String(), maxMessage)
	}
	return []metav1.Condition{c}
}
