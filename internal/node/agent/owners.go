// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// ownersTimeout limits one request to the kubelet.
	ownersTimeout = 5 * time.Second
	// ownersEvery is about the shortest time between two requests, so that fast
	// ticks do not load the kubelet. A tick of a second or more always sends
	// one.
	ownersEvery = time.Second
	// settle is how long a kubelet's list may be incomplete after a failure:
	// after a start, the kubelet lists no pods until it has them from the API
	// server.
	settle = 10 * time.Second
)

// ownership is the kubelet's last list of allocations. It stays valid while the
// kubelet does not answer: only the kubelet allocates devices.
type ownership struct {
	allocs  []gpu.Allocation
	at      time.Time // of the last answer
	err     error     // why the last request failed
	settled time.Time // until then, allocations that are missing from an answer are kept

	asked time.Time // the last request
	busy  bool      // the request is pending
	slow  bool      // the last answer came too late for its tick
}

// answer is the result of one request to the kubelet.
type answer struct {
	allocs []gpu.Allocation
	err    error
}

func (o *ownership) accept(a answer, now time.Time) {
	if a.err != nil {
		o.err, o.settled = a.err, time.Time{}
		return
	}
	if o.err != nil && !o.at.IsZero() {
		o.settled = now.Add(settle)
	}
	if now.Before(o.settled) {
		a.allocs = withMissing(a.allocs, o.allocs)
	}
	o.allocs, o.at, o.err = a.allocs, now, nil
}

// withMissing adds to allocs those of old whose device is not in allocs.
func withMissing(allocs, old []gpu.Allocation) []gpu.Allocation {
	taken := make(map[string]bool, len(allocs))
	for _, a := range allocs {
		taken[a.DeviceID] = true
	}
	for _, a := range old {
		if !taken[a.DeviceID] {
			allocs = append(allocs, a)
		}
	}
	return allocs
}

// ask sends a request in a goroutine of its own. It reports whether it did: not
// while one is pending, and not too often.
func (o *ownership) ask(ctx context.Context, now time.Time, interval time.Duration, f func(context.Context) ([]gpu.Allocation, error), out chan<- answer) bool {
	if f == nil || o.busy || o.tooSoon(now, interval) {
		return false
	}
	o.busy, o.asked = true, now
	go func() {
		ctx, cancel := context.WithTimeout(ctx, ownersTimeout)
		defer cancel()
		allocs, err := f(ctx)
		out <- answer{allocs, err} // buffered
	}()
	return true
}

func (o *ownership) tooSoon(now time.Time, interval time.Duration) bool {
	return interval < ownersEvery && now.Sub(o.asked) < ownersEvery-interval/2
}

// living removes the allocations of pods that have ended: some kubelets list
// such pods until they are deleted. It removes none if the pods from the API
// server are not up to date.
func living(allocs []gpu.Allocation, s *gpu.Snapshot) []gpu.Allocation {
	if s.Pods == nil || s.PodsErr != nil {
		return allocs
	}
	out := make([]gpu.Allocation, 0, len(allocs))
	for _, a := range allocs {
		if _, ok := s.Pods[gpu.PodName{Namespace: a.Owner.Namespace, Name: a.Owner.Pod}]; ok {
			out = append(out, a)
		}
	}
	return out
}

// logStrangers logs once that no allocation belongs to a running pod: the pods
// have ended, or the node's name is wrong.
func (l *loop) logStrangers(none bool) {
	if none && !l.strangers {
		l.deps.Log.Warn("no pod that holds a device is a running pod of this node in the API server; if the pods run, NODE_NAME is wrong", "node", l.cfg.Node)
	}
	l.strangers = none
}
