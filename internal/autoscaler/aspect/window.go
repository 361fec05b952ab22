// SPDX-License-Identifier: Apache-2.0

package aspect

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
	maxTarget         = 200           // bytes of its name
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

// window says that a target with samples of the workload's pods is limited, so that their window is not complete.
type window struct {
	None
	fleet *Fleet
}

// The page does not show the condition.
func (x *window) Report(p *Pass) Part {
	limited, generation, at := x.limited(p), p.Object.Generation, metav1.Time{Time: p.At}
	return Part{Status: func(st, _ *v1alpha1.GPUAutoscalerStatus) {
		c := windowCondition(limited, meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionWindow))
		if c.ObservedGeneration, c.LastTransitionTime = generation, at; c.Type != "" {
			meta.SetStatusCondition(&st.Conditions, c)
		}
	}}
}

// limited returns the first limited target, by place, with samples of the workload's pods; nil: there is none.
func (x *window) limited(p *Pass) *series.Limited {
	byPlace := x.fleet.limits.byPlaceAt(p.At, x.fleet.Store)
	if len(byPlace) == 0 {
		return nil
	}
	first := ""
	for place := range p.Places {
		if byPlace[place] != nil && (first == "" || place < first) {
			first = place
		}
	}
	return byPlace[first]
}

// windowCondition returns ConditionWindow if a target is limited, or was before. While the same target is limited for the
// same reason, the message keeps its first numbers.
func windowCondition(x *series.Limited, last *metav1.Condition) (c metav1.Condition) {
	if x == nil && last == nil {
		return c
	}
	c = metav1.Condition{Type: v1alpha1.ConditionWindow, Status: metav1.ConditionFalse, Reason: reasonTargetLimit}
	if x == nil {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, reasonComplete, "no target with samples of its pods is limited"
		return c
	}
	if x.Short {
		c.Reason = reasonMemoryLimit
	}
	prefix := fmt.Sprintf("target %s ", excerpt.Of(x.Target, maxTarget))
	if last != nil && last.Reason == c.Reason && strings.HasPrefix(last.Message, prefix) {
		c.Message = last.Message
	} else {
		c.Message = excerpt.Of(prefix+x.String(), maxMessage)
	}
	return c
}
