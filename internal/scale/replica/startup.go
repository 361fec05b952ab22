// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"cmp"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// Startup learns how long the workload's pods take from creation to readiness.
type Startup struct {
	starts        Durations
	waiting       map[types.UID]bool // pods observed before they were first ready
	unschedulable map[types.UID]bool // those of waiting that were unschedulable at times
}

// Restore continues with the values learned before a restart: only the quantiles of
// the starts were stored.
func (s *Startup) Restore(l *v1alpha1.LearnedStartup) {
	if l == nil || l.Samples <= 0 || s.starts.Len() > 0 || !isStartup(l) {
		return
	}
	n := int(min(l.Samples, keptStarts))
	p75 := p75Of(l)
	upTo := func(q float64) int { return int(math.Ceil(q * float64(n))) }
	for rank := n; rank > 0; rank-- { // the slow ones first, so that new starts replace them first
		seconds := l.P50Seconds
		switch {
		case rank >= upTo(0.95):
			seconds = l.P95Seconds
		case rank > upTo(0.50):
			seconds = p75
		}
		s.starts.Add(time.Duration(seconds) * time.Second)
	}
}

// isStartup reports whether the quantiles are plausible. Others may have written the
// status; implausible values are ignored and learned again.
func isStartup(l *v1alpha1.LearnedStartup) bool {
	p75 := p75Of(l)
	return 0 <= l.P50Seconds && l.P50Seconds <= p75 && p75 <= l.P95Seconds && l.P95Seconds <= int32(longestStart/time.Second)
}

// p75Of is the 75th percentile, or the median of an earlier version, which stored none.
func p75Of(l *v1alpha1.LearnedStartup) int32 { return cmp.Or(l.P75Seconds, l.P50Seconds) }

// Observe records the starts of the workload's pods.
func (s *Startup) Observe(pods []*corev1.Pod) {
	if s.waiting == nil {
		s.waiting, s.unschedulable = map[types.UID]bool{}, map[types.UID]bool{}
	}
	here := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		here[pod.UID] = true
		phase, since := PhaseOf(pod)
		waited := s.waiting[pod.UID]
		switch {
		case phase == scale.Serving && waited:
			s.starts.Add(since.Sub(s.startTime(pod)))
			delete(s.waiting, pod.UID)
		case phase == scale.Unschedulable:
			s.unschedulable[pod.UID] = true
			s.waiting[pod.UID] = true
		case phase == scale.Starting && !waited && IsNew(pod):
			s.waiting[pod.UID] = true
		}
	}
	for uid := range s.waiting {
		if !here[uid] {
			delete(s.waiting, uid)
		}
	}
	for uid := range s.unschedulable {
		if !s.waiting[uid] {
			delete(s.unschedulable, uid)
		}
	}
}

// startTime returns when the pod's start began: at its creation, or at its scheduling
// if it was unschedulable before.
func (s *Startup) startTime(pod *corev1.Pod) time.Time {
	if at, ok := ScheduledAt(pod); ok && s.unschedulable[pod.UID] {
		return at
	}
	return pod.CreationTimestamp.Time
}

// Typical returns the 75th percentile of the starts; 0 before the first start.
func (s *Startup) Typical() time.Duration { return s.starts.Quantile(0.75) }

// Learned returns the quantiles of the starts; nil before the first start.
func (s *Startup) Learned() *v1alpha1.LearnedStartup {
	if s.starts.Len() == 0 {
		return nil
	}
	return &v1alpha1.LearnedStartup{
		P50Seconds: int32(s.starts.Quantile(0.50) / time.Second),
		P75Seconds: int32(s.Typical() / time.Second),
		P95Seconds: int32(s.starts.Quantile(0.95) / time.Second),
		Samples:    int32(s.starts.Len()),
	}
}
