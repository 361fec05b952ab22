// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// feature is a feature of a workload's GPUAutoscaler.
type feature string

const (
	drains    feature = "drain"    // replicas leave the endpoints before they are removed
	rollouts  feature = "rollout"  // its pods are replaced
	overrides feature = "override" // somebody holds or bounds its replicas
	schedules feature = "schedule" // its bounds follow the time of day
	budgets   feature = "budget"   // its GPUs are bounded
	pairs     feature = "pair"     // its replicas follow those of another workload
	steps     feature = "steps"    // one replica more at a time
)

// features are all of them.
var features = []feature{drains, rollouts, overrides, schedules, budgets, pairs, steps}

// least and most are minReplicas and maxReplicas, and most are also the replicas that a load may need.
const least, most = 1, 5

// wish is what a workload's load and its GPUAutoscaler ask for.
type wish struct {
	need     int32 // by the load
	override *v1alpha1.Override
	schedule *v1alpha1.Schedule
	budget   int32 // 0: none
}

// bounds are those in force at a time.
func (w *wish) bounds(at time.Time) (low, high int32) {
	low, high = least, most
	if s := w.schedule; s != nil && isWithin(s, at) {
		if s.MinReplicas != nil {
			low, high = *s.MinReplicas, max(high, *s.MinReplicas)
		}
		if s.MaxReplicas != nil {
			low, high = min(low, *s.MaxReplicas), *s.MaxReplicas
		}
	}
	if o := w.override; o != nil && at.Before(o.Until.Time) {
		switch {
		case o.Replicas != nil:
			low, high = *o.Replicas, *o.Replicas
		case o.MinReplicas != nil:
			low, high = *o.MinReplicas, max(high, *o.MinReplicas)
		case o.MaxReplicas != nil:
			low, high = min(low, *o.MaxReplicas), *o.MaxReplicas
		}
	}
	return low, high
}

// isWithin reports whether a time is in a window of start and end, in UTC.
func isWithin(s *v1alpha1.Schedule, at time.Time) bool {
	now, start, end := at.UTC().Format("15:04"), s.Start, s.End
	if end <= start {
		return now >= start || now < end
	}
	return now >= start && now < end
}

// alone are the replicas without a partner.
func (w *wish) alone(at time.Time) int32 { return w.within(w.need, at) }

// within bounds replicas, at last by the budget: minReplicas of the spec is kept.
func (w *wish) within(n int32, at time.Time) int32 {
	low, high := w.bounds(at)
	n = min(max(n, low), high)
	if w.budget > 0 {
		n = min(n, max(w.budget, least))
	}
	return n
}

// ratio is that of a pair, whose first member declares it.
type ratio struct{ min, max float64 }

// replicas are those of a workload at a time. first: it declares the ratio to its partner.
func replicas(w, partner *wish, r ratio, first bool, at time.Time) int32 {
	n := w.need
	if low, _ := w.bounds(at); n < low {
		n = low
	}
	if partner != nil {
		theirs := float64(partner.alone(at))
		if first {
			n = max(n, int32(math.Ceil(r.min*theirs-1e-9)))
		} else if theirs > 0 {
			n = max(n, max(1, int32(math.Floor(theirs/r.max+1e-9))))
		}
	}
	return w.within(n, at)
}

// subject is a workload under test. rig.audit guards what changes.
type subject struct {
	name     string
	has      []feature
	usesGPU  bool     // its signal is the utilisation of GPUs, else a query
	both     bool     // it has both signals, and the query asks for more
	partner  *subject // of a pair
	first    bool     // it declares the pair
	ratio    ratio
	version  int // of its pods
	now      wish
	was      []wish // since the last convergence, with now
	replicas int32  // as last seen
	desired  int32  // as last decided
	restored bool   // they were put back by a restore
	did      []string
	broken   []string
}

func (s *subject) can(f feature) bool { return slices.Contains(s.has, f) }

func (s *subject) String() string { return fmt.Sprintf("%s %v", s.name, s.has) }

// wishes are all since the last convergence. lossy: pods were lost, and the GPUs of the others are at 100 %, which does not
// say how much more is needed.
func (s *subject) wishes(lossy bool) (out []wish) {
	out = slices.Clone(s.was)
	if lossy && s.usesGPU {
		for _, w := range s.was {
			w.need = most + 1
			out = append(out, w)
		}
	}
	return out
}

// envelope are the fewest and the most replicas that anything since the last convergence asks for. slack: clocks may be
// wrong by that.
func (s *subject) envelope(at time.Time, slack time.Duration, lossy bool) (low, high int32) {
	low, high = math.MaxInt32, 0
	theirs := []*wish{nil}
	if s.partner != nil {
		theirs = nil
		all := s.partner.wishes(lossy)
		for i := range all {
			theirs = append(theirs, &all[i])
		}
	}
	ours := s.wishes(lossy)
	for i := range ours {
		for _, partner := range theirs {
			for _, t := range []time.Time{at, at.Add(slack), at.Add(-slack)} {
				n := replicas(&ours[i], partner, s.ratio, s.first, t)
				low, high = min(low, n), max(high, n)
			}
		}
	}
	return low, high
}

// target are the replicas that it has to end with.
func (s *subject) target(at time.Time) int32 {
	if s.partner == nil {
		return replicas(&s.now, nil, s.ratio, s.first, at)
	}
	return replicas(&s.now, &s.partner.now, s.ratio, s.first, at)
}

// offered is the load that needs so many replicas, in the middle of what does: as a share of what a replica can serve of
// GPUs, and of a query's total.
func offered(need int32) (share, total float64) {
	n := float64(need) - 0.5
	return n * stack.Target / 100, n * 10
}

// windows are schedules around a time: all day, later, and soon over.
func windows(at time.Time) []v1alpha1.Schedule {
	clock := func(d time.Duration) string { return at.UTC().Add(d).Format("15:04") }
	out := []v1alpha1.Schedule{
		{Start: "00:00", End: "00:00"},
		{Start: clock(6 * time.Minute), End: clock(2 * time.Hour)},
		{Start: clock(-2 * time.Hour), End: clock(6 * time.Minute)},
	}
	for i := range out {
		out[i].Name, out[i].LeadTime = "window", new(intstr.FromInt32(0))
	}
	return out
}

// holds are overrides until a time.
func holds(until time.Time) (out []v1alpha1.Override) {
	for _, n := range []int32{0, 2, 4, 7} {
		out = append(out, v1alpha1.Override{Replicas: &n})
	}
	out = append(out, v1alpha1.Override{MinReplicas: new(int32(4))}, v1alpha1.Override{MaxReplicas: new(int32(2))})
	for i := range out {
		out[i].Until, out[i].Reason = metav1.NewTime(until.Truncate(time.Second)), "test"
	}
	return out
}
