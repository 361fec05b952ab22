// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"time"

	"github.com/prometheus/prometheus/model/labels"
	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// isShown reports whether a series is shown with the labels of its page: those of a pod
// are shown unless the API server contradicts them.
func (s *Store) isShown(e *entry, now time.Time) bool {
	return e.claim == nil || s.deps.Pods == nil || s.isTrue(e, now)
}

// contradicted returns the labels of a series whose pod the API server contradicts. They
// name the pod neither as a page does nor as a Prometheus renames it, so that no query
// takes the series for that pod's.
func contradicted(l labels.Labels) labels.Labels {
	b := labels.NewBuilder(l)
	for _, name := range page.OwnerLabels {
		value := l.Get(name)
		if value == "" {
			continue
		}
		b.Del(name)
		for name = "contradicted_" + name; l.Has(name); {
			name = "contradicted_" + name
		}
		b.Set(name, value)
	}
	return b.Labels()
}

// exported returns the labels of a series with its owner under both names.
func exported(l labels.Labels) labels.Labels {
	b := labels.NewBuilder(l)
	for _, name := range page.OwnerLabels {
		b.Set(page.Exported(name), l.Get(name)) // an empty value deletes the label
	}
	return b.Labels()
}

// isTrue reports whether the API server confirms an exporter's claim that a series is
// of a pod.
func (s *Store) isTrue(e *entry, now time.Time) bool {
	if e.last.Until != series.Open {
		return s.wasTrue(e.claim, time.Unix(0, e.last.Until))
	}
	return s.holds(e.claim, time.Unix(0, e.since()), now)
}

// holds reports whether the API server confirms a claim that an exporter makes now, and
// has made since a time.
func (s *Store) holds(c *claim, since, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled {
		good, settled := s.verify(c, since, now)
		contradicted := 0
		if c.good = good; !good {
			contradicted = c.series
		}
		s.index.tally.set(c, contradicted, settled)
	}
	return c.good
}

// settle verifies the claims that are not settled, so that the count of contradicted
// series is up to date.
func (s *Store) settle(now time.Time) {
	if s.deps.Pods == nil {
		return
	}
	s.refresh()
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, c := range s.index.tally.unsettled() {
		s.holds(c, time.Unix(0, c.since), now)
	}
}

// verify checks a claim that an exporter makes now. settled reports whether the result
// holds until the pod changes.
func (s *Store) verify(c *claim, since, now time.Time) (good, settled bool) {
	pod, ok := s.deps.Pods.Get(c.namespace, c.pod)
	switch {
	case c.pod == "": // a namespace alone cannot be verified
		return false, true
	case !ok:
		return now.Sub(since) < claimSlack, false
	case pod.Spec.NodeName != c.target.labels.Node:
		return now.Sub(pod.CreationTimestamp.Time) < claimSlack, false
	}
	if most := s.maxDevices(pod); most >= 0 && c.target.window.Claimed(c.namespace, c.pod) > most {
		return false, false
	}
	return true, len(pod.Spec.ResourceClaims) == 0
}

// wasTrue checks a claim that ended. The pod may be gone, or a newer one may have its
// name.
func (s *Store) wasTrue(c *claim, until time.Time) bool {
	pod, ok := s.deps.Pods.Get(c.namespace, c.pod)
	return c.pod != "" && (!ok || pod.Spec.NodeName == c.target.labels.Node || until.Before(pod.CreationTimestamp.Add(claimSlack)))
}

// maxDevices returns the most devices that a pod can hold; negative: unknown.
func (s *Store) maxDevices(pod *corev1.Pod) int {
	if s.deps.Holder == nil {
		return -1
	}
	return s.deps.Holder(pod).Devices
}
