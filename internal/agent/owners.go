// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// ownersTimeout bounds one question to the kubelet.
	ownersTimeout = 5 * time.Second
	// ownersEvery is about the shortest time between two questions: fast ticks
	// are not the kubelet's problem. A tick of a second or more always asks.
	ownersEvery = time.Second
	// settle is how long a kubelet that was away may have forgotten devices:
	// after a start it lists no pod until it has heard from the API server.
	settle = 10 * time.Second
)

// ownership is who holds what, as far as the kubelet said. While it does not
// answer, its last answer holds: nobody else gives devices away, so that what
// it said stays true for as long as it is down.
type ownership struct {
	allocs  []gpu.Allocation
	at      time.Time // of the last answer
	err     error     // why there was none to the last question
	settled time.Time // until then, what is missing from an answer is kept

	asked time.Time // the last question
	busy  bool      // it is not answered yet
	slow  bool      // the last answer came too late for its tick
}

// answer is the kubelet's, to one question.
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

// withMissing adds to allocs those of old whose device nobody in allocs has.
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

// ask puts the question in a goroutine of its own, and says whether it did: one
// at a time, and not too often.
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

// living leaves out the allocations of pods that have ended: some kubelets list
// them for as long as they are not deleted. Only an API server whose word is
// fresh can tell.
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

// logStrangers logs, once, that no pod is left of those that hold devices: they
// have ended, or the node's name is wrong.
func (l *loop) logStrangers(none bool) {
	if none && !l.strangers {
		l.deps.Log.Warn("the API server knows none of the pods that hold devices as a running pod of this node; if they run, NODE_NAME is wrong", "node", l.cfg.Node)
	}
	l.strangers = none
}

// assignJobs gives devices the jobs that a mapping has under their GPU's index,
// for a MIG instance under index.instance.
func assignJobs(devices []gpu.DeviceSnapshot, jobs map[string][]string) {
	if len(jobs) == 0 {
		return
	}
	for i := range devices {
		d := &devices[i]
		key := strconv.Itoa(d.Index)
		if d.MIG != nil {
			key += "." + strconv.Itoa(d.MIG.GPUInstance)
		}
		d.Jobs = jobs[key]
	}
}
