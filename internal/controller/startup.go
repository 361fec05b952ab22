// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// startsKept is how many starts the quantiles are taken from: enough for a
	// 95th percentile, few enough to forget the last image.
	startsKept = 20
	// longestStart bounds what is taken for a start.
	longestStart = time.Hour
)

// startup learns how long the workload's pods take from creation to readiness.
type startup struct {
	took    []time.Duration    // the last starts, oldest first
	waiting map[types.UID]bool // seen before they were first ready
	stuck   map[types.UID]bool // of waiting: no node took them for a while
}

// restore takes over what was learned before a restart. Of the starts
// themselves only the quantiles are left.
func (s *startup) restore(l *v1alpha1.LearnedStartup) {
	if l == nil || l.Samples <= 0 || len(s.took) > 0 || !isStartup(l) {
		return
	}
	n := int(min(l.Samples, startsKept))
	slow := max(1, n/10)
	for i := range n {
		seconds := l.P50Seconds
		if i < slow {
			seconds = l.P95Seconds
		}
		s.took = append(s.took, time.Duration(seconds)*time.Second)
	}
}

// isStartup reports whether the quantiles can have been learned. Who may write
// a status can make up any; these are learned anew.
func isStartup(l *v1alpha1.LearnedStartup) bool {
	return 0 <= l.P50Seconds && l.P50Seconds <= l.P95Seconds && l.P95Seconds <= int32(longestStart/time.Second)
}

// see looks at the workload's pods, and says whether one has become ready.
func (s *startup) see(pods []*corev1.Pod) (learned bool) {
	if s.waiting == nil {
		s.waiting, s.stuck = map[types.UID]bool{}, map[types.UID]bool{}
	}
	here := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		here[pod.UID] = true
		phase, since := PhaseOf(pod)
		waited := s.waiting[pod.UID]
		switch {
		case phase == scale.Serving && waited:
			s.add(since.Sub(s.began(pod)))
			delete(s.waiting, pod.UID)
			learned = true
		case phase == scale.Unschedulable:
			s.stuck[pod.UID] = true
			s.waiting[pod.UID] = true
		case phase == scale.Starting && !waited && isNew(pod):
			s.waiting[pod.UID] = true
		}
	}
	for uid := range s.waiting {
		if !here[uid] {
			delete(s.waiting, uid)
		}
	}
	for uid := range s.stuck {
		if !s.waiting[uid] {
			delete(s.stuck, uid)
		}
	}
	return learned
}

// isNew says whether the pod has never been ready as far as it tells: one that
// was, and is not any more, became so long after it was scheduled.
func isNew(pod *corev1.Pod) bool {
	var scheduled, unready time.Time
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case corev1.PodScheduled:
			scheduled = c.LastTransitionTime.Time
		case corev1.PodReady:
			unready = c.LastTransitionTime.Time
		}
	}
	// The kubelet reports on a new pod within seconds of its being scheduled.
	return unready.IsZero() || scheduled.IsZero() || unready.Sub(scheduled) <= 10*time.Second
}

// began is when the start began: at the pod's creation, or when a node took it
// at last.
func (s *startup) began(pod *corev1.Pod) time.Time {
	if s.stuck[pod.UID] {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
				return c.LastTransitionTime.Time
			}
		}
	}
	return pod.CreationTimestamp.Time
}

func (s *startup) add(took time.Duration) {
	s.took = append(s.took, min(max(took, 0), longestStart))
	if n := len(s.took); n > startsKept {
		s.took = slices.Delete(s.took, 0, n-startsKept)
	}
}

// learned is what is known; nil before the first start.
func (s *startup) learned() *v1alpha1.LearnedStartup {
	if len(s.took) == 0 {
		return nil
	}
	sorted := slices.Sorted(slices.Values(s.took))
	return &v1alpha1.LearnedStartup{
		P50Seconds: wholeSeconds(quantile(sorted, 0.50)),
		P95Seconds: wholeSeconds(quantile(sorted, 0.95)),
		Samples:    int32(len(sorted)),
	}
}

// quantile is the value that a share of at least q of them does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// wholeSeconds rounds up: Kubernetes' times are whole seconds, cut off.
func wholeSeconds(d time.Duration) int32 { return int32(math.Ceil(d.Seconds())) }
