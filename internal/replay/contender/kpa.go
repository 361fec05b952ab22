// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// NewKPA returns Knative's autoscaler on concurrency, with its stable window and its
// scale-down delay in seconds.
func NewKPA(target float64, window, delay int) Entry {
	return Entry{
		Name: fmt.Sprintf("kpa concurrency=%g %ds delay=%ds", target, window, delay), Family: KPA, Class: OnRequests,
		New: func(r *Replay) (service.Autoscaler, error) {
			return &kpa{target: target, window: window, delay: delay, min: r.Min, max: r.Max}, nil
		},
	}
}

// kpa is Knative's autoscaler of the simulated service. It reads every pod each second.
// The real one reads a random subset of large deployments.
type kpa struct {
	target        float64
	window, delay int // seconds
	min, max      int

	model *peers.KPA
}

// Decide implements service.Autoscaler.
func (k *kpa) Decide(d *service.Deployment, now int) (int, []string) {
	if k.model == nil {
		k.model = peers.NewKPA(k.target, k.window, k.delay, now, d.Ready())
	}
	concurrency, n := d.Total(d.At(now-1), service.Concurrency, 0)
	if n > 0 || d.Queued() > 0 {
		k.model.Record(now, concurrency+float64(d.Queued()))
	}
	if now%peers.KPATick != 0 {
		return service.Unchanged, nil
	}
	desired, ok := k.model.Scale(now, d.Ready())
	if !ok {
		return service.Unchanged, nil
	}
	return min(max(desired, k.min), k.max), nil
}
