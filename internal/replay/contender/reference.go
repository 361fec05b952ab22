// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"fmt"
	"math"

	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// Fixed returns an entry with a constant number of replicas: a share of the peak need.
func Fixed(share float64) Entry {
	return Entry{
		Name: fmt.Sprintf("fixed %g x peak", share), Family: FixedReplicas,
		New: func(r *Replay) (service.Autoscaler, error) {
			return fixed{min(max(r.Min, Ceil(share*r.PeakNeed)), r.Max)}, nil
		},
	}
}

type fixed struct{ replicas int }

// Decide implements service.Autoscaler.
func (f fixed) Decide(*service.Deployment, int) (int, []string) { return f.replicas, nil }

// Reactive returns an autoscaler that knows the cost of every request, but not the future.
// Headroom is the load per replica, as a share of its capacity. It waits for window seconds
// before it scales down.
func Reactive(headroom float64, window int) Entry {
	return Entry{
		Name: fmt.Sprintf("reactive %g %ds", headroom, window), Family: ReactiveAutoscaler,
		New: func(r *Replay) (service.Autoscaler, error) {
			return &reactive{need: r.Need, headroom: headroom, window: window, min: r.Min, max: r.Max}, nil
		},
	}
}

// reactive knows the need up to now. It scales up to the need of the last bin at once, and
// down to the highest need within its window. No autoscaler without a forecast can know
// more.
type reactive struct {
	need     []float64
	headroom float64
	window   int // seconds
	min, max int
}

// Decide implements service.Autoscaler.
func (r *reactive) Decide(_ *service.Deployment, now int) (int, []string) {
	last := min(now/service.NeedSeconds-1, len(r.need)-1) // the last complete bin
	if last < 0 {
		return service.Unchanged, nil
	}
	replicas := 0
	for i := max(0, last-r.window/service.NeedSeconds); i <= last; i++ {
		replicas = max(replicas, Ceil(r.need[i]/r.headroom))
	}
	return min(max(replicas, r.min), r.max), nil
}

// Ceil returns the number of replicas for a need, at most a million.
func Ceil(need float64) int { return int(math.Ceil(min(need, 1e6))) }
