// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// keepHeld is how long the counters of a group stay on /metrics after its last GPU, so that every Prometheus has read them.
const keepHeld = time.Hour

// heldCounters count the GPU-seconds that groups held, and those in which their GPUs were idle: held by a serving pod, and
// without activity for a minute. A group that comes back later than keepHeld starts again at 0.
type heldCounters struct {
	last time.Time // of the pass before
	by   map[Group]*heldSeconds
}

type heldSeconds struct {
	held, idle float64 // s × GPUs
	seen       time.Time
}

// add adds a pass. The time since the pass before counts, at most two intervals of it: nobody knows what happened in a longer
// pause. Groups whose aggregates are withheld or left out are not counted: missing is not idle.
func (h *heldCounters) add(a *Aggregates, maxGroups int) {
	elapsed := min(a.At.Sub(h.last), 2*aggregateInterval).Seconds()
	if h.last.IsZero() {
		elapsed = 0
	}
	h.last = a.At
	for i := range a.Items {
		x := &a.Items[i]
		if x.Field != gpu.GPUUtil || x.Withheld || !a.Shown[x.Group] {
			continue
		}
		s := h.by[x.Group]
		if s == nil {
			if h.by == nil {
				h.by = map[Group]*heldSeconds{}
			}
			s = &heldSeconds{}
			h.by[x.Group] = s
		}
		s.held += elapsed * float64(x.Allocated.GPUs)
		s.idle += elapsed * float64(max(0, x.Allocated.GPUs-x.Active.GPUs))
		s.seen = a.At
	}
	h.forget(a.At, 4*maxGroups+1)
}

// forget forgets the groups of long ago, and the oldest of more than most.
func (h *heldCounters) forget(now time.Time, most int) {
	var rest []Group
	for g, s := range h.by {
		if now.Sub(s.seen) > keepHeld {
			delete(h.by, g)
		} else {
			rest = append(rest, g)
		}
	}
	if len(rest) <= most {
		return
	}
	slices.SortFunc(rest, func(a, b Group) int {
		return cmp.Or(h.by[a].seen.Compare(h.by[b].seen), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	for _, g := range rest[:len(rest)-most] {
		delete(h.by, g)
	}
}

// heldDescs describe the counters.
type heldDescs struct{ held, idle [scopes]*prometheus.Desc }

func newHeldDescs() (d heldDescs) {
	for s := range scopes {
		prefix := "gpupilot_" + scopeNames[s].name
		d.held[s] = prometheus.NewDesc(prefix+"_held_gpu_seconds_total", "GPU-seconds that serving pods "+scopeNames[s].of+" held.", s.labels(), nil)
		d.idle[s] = prometheus.NewDesc(prefix+"_idle_held_gpu_seconds_total", "GPU-seconds that serving pods "+scopeNames[s].of+" held without activity within the minute before.", s.labels(), nil)
	}
	return d
}

func (d *heldDescs) describe(ch chan<- *prometheus.Desc) {
	for s := range scopes {
		ch <- d.held[s]
		ch <- d.idle[s]
	}
}

func (d *heldDescs) collect(ch chan<- prometheus.Metric, h *heldCounters) {
	for g, s := range h.by {
		scope, labels := g.scope()
		ch <- prometheus.MustNewConstMetric(d.held[scope], prometheus.CounterValue, s.held, labels...)
		ch <- prometheus.MustNewConstMetric(d.idle[scope], prometheus.CounterValue, s.idle, labels...)
	}
}
