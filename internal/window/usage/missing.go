// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/scale/replica"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/trust"
)

// An aggregate says nothing if the members that it lacks could make it higher
// (stat.Accumulator.CanMislead). This file says which pods should have a value: those that
// carry load. A pod that starts, ends or is not ready does not, nor does one without a GPU.
// A pod that has just become ready has the time of its first collections.

// expects decides whether pods without a value should have one.
type expects struct {
	store   *series.Store
	devices *trust.Devices
	now     time.Time
	maxAge  time.Duration
}

// isNew reports whether a serving pod became ready so lately that its first value may be
// on its way: for as long as a value of its node counts.
func (x *expects) isNew(pod *corev1.Pod) bool {
	_, keep, _ := x.store.NodeRead(pod.Spec.NodeName)
	_, since := replica.PhaseOf(pod)
	return x.now.Sub(since) <= max(x.maxAge, keep)
}

// gpus returns how many GPUs a serving pod holds; at least 1 if that is not known.
func (x *expects) gpus(pod *corev1.Pod) (n int, known bool) {
	n, known = x.devices.InUse(pod)
	if !known {
		n = max(1, x.devices.MostOfPod(pod))
	}
	return n, known
}

// The bounds of what is said about missing members: groups of one cause, and names in each.
const (
	maxCauses = 2
	maxNamed  = 3
	maxName   = 63 // bytes
)

// missing is the members without a value that should have one, for a sentence.
type missing struct {
	total  int // members
	named  int // members that causes name or count
	causes []cause
}

// cause is why some members have no value.
type cause struct {
	why   string
	names []string // the first ones
	total int
}

// add adds n members of one name.
func (m *missing) add(n int, name, why string) {
	m.total += n
	i := slices.IndexFunc(m.causes, func(c cause) bool { return c.why == why })
	if i < 0 {
		if len(m.causes) == maxCauses {
			return
		}
		i, m.causes = len(m.causes), append(m.causes, cause{why: why})
	}
	c := &m.causes[i]
	c.total++
	m.named += n
	if len(c.names) < maxNamed {
		c.names = append(c.names, excerpt.Of(name, maxName))
	}
}

// String names some of the members, with the cause.
func (m *missing) String() string {
	var parts []string
	for i := range m.causes {
		c := &m.causes[i]
		names := strings.Join(c.names, ", ")
		if more := c.total - len(c.names); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, names+": "+c.why)
	}
	if m.named < m.total {
		parts = append(parts, "and others")
	}
	return strings.Join(parts, "; ")
}

// whyNot says why a pod's GPUs have no value. It is the same text while nothing changes.
func (x *expects) whyNot(pod *corev1.Pod) string {
	at, keep, found := x.store.NodeRead(pod.Spec.NodeName)
	node := excerpt.Of(pod.Spec.NodeName, maxName)
	switch {
	case !found:
		return "no agent or exporter of node " + node + " is known"
	case at.UnixNano() <= 0:
		return "the agent of node " + node + " was not read yet"
	case x.now.Sub(at) > max(x.maxAge, keep):
		return "the agent of node " + node + " was last read at " + at.UTC().Format(time.RFC3339)
	}
	return "node " + node + " does not report it"
}
