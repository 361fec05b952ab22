// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// holder is what a pod holds.
type holder struct {
	namespace, pod string
	gpus           float64 // a shared GPU counts as its share
	idle           float64
	cost           sum // USD an hour of the idle-held ones
	totals         totals
	since          time.Time     // the oldest
	idleFor        time.Duration // as idleFor of each of its idle-held GPUs, the shortest
	idleAtLeast    bool
	nodes          []string
}

// holders are the pods that hold GPUs, by name.
func (f *Fleet) holders(look *Look) []*holder {
	byName := map[view.Owner]*holder{}
	for i := range f.GPUs {
		g := &f.GPUs[i]
		for _, o := range g.Owners {
			if look.Namespace != "" && o.Namespace != look.Namespace || o.Pod == "" {
				continue
			}
			key := view.Owner{Namespace: o.Namespace, Pod: o.Pod}
			h := byName[key]
			if h == nil {
				h = &holder{namespace: o.Namespace, pod: o.Pod}
				byName[key] = h
			}
			h.add(g, look)
		}
	}
	out := make([]*holder, 0, len(byName))
	for _, h := range byName {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b *holder) int {
		return strings.Compare(a.name(), b.name())
	})
	return out
}

func (h *holder) add(g *GPU, look *Look) {
	share := 1 / float64(len(g.Owners))
	h.gpus += share
	h.totals.add(g)
	if g.State == view.Idle {
		if d, atLeast := g.idleFor(look); h.idle == 0 || d < h.idleFor {
			h.idleFor, h.idleAtLeast = d, atLeast
		}
		h.idle += share
		usd := look.usd(g)
		if usd != nil {
			part := share * *usd
			usd = &part
		}
		h.cost.add(usd)
	}
	if s := g.HeldSince; !s.IsZero() && (h.since.IsZero() || s.Before(h.since)) {
		h.since = s
	}
	if !slices.Contains(h.nodes, g.Node) {
		h.nodes = append(h.nodes, g.Node)
	}
}

func (h *holder) name() string { return ownerName(&view.Owner{Namespace: h.namespace, Pod: h.pod}) }

func (h *holder) row() Row {
	return Row{ID: h.name(), Labels: map[string]string{"namespace": h.namespace, "pod": h.pod, "node": h.nodes[0]}}
}

// held is for how long a pod has held its GPUs.
func (h *holder) held(now time.Time) Cell {
	if h.since.IsZero() {
		return Cell{}
	}
	d := max(0, now.Sub(h.since))
	return Cell{Text: short(d), Value: d.Seconds()}
}

// idleFor is for how long a GPU has been idle-held: as the controller knows it, else as long as this program has seen it.
// It may be longer if atLeast is set. 0: it is not idle-held, or that is not known.
func (g *GPU) idleFor(look *Look) (d time.Duration, atLeast bool) {
	if g.State != view.Idle || g.IdleSince.IsZero() {
		return look.Trends.IdleFor(g.UUID, look.Now), true
	}
	return max(0, look.Now.Sub(g.IdleSince)), g.IdleAtLeast
}

// idleCell is for how long GPUs have been idle-held.
func idleCell(d time.Duration, atLeast bool) Cell {
	if d < time.Second {
		return Cell{}
	}
	c := Cell{Text: short(d), Value: d.Seconds()}
	if atLeast {
		c.Text = "≥" + c.Text
	}
	return c
}

// idleSeen is for how long all idle-held GPUs of a pod have been idle-held.
func (h *holder) idleSeen() Cell { return idleCell(h.idleFor, h.idleAtLeast) }

func amount(n float64) Cell { return Cell{Text: fmt.Sprintf("%.3g", n), Value: n} }

func (f *Fleet) pods(look *Look) Table {
	t := Table{Sort: "-gpus", Columns: []Column{
		{Key: "pod", Head: "POD", Names: true, Least: 20},
		{Key: "gpus", Head: "GPUS", Right: true},
		{Key: "utilization_percent", Head: "USE", Least: 13},
		{Key: "idle_held_gpus", Head: "IDLE-HELD", Right: true},
		{Key: "memory_used_gib", Head: "MEM", Right: true, Least: 5},
		{Key: "power_watts", Head: "W", Right: true, Least: 4},
		{Key: "held_seconds", Head: "HELD", Right: true, Least: 5},
		{Key: "idle_seconds_seen", Head: "IDLE FOR", Right: true, Rank: 1},
		{Key: "nodes", Head: "NODES", Wide: true, Names: true},
	}}
	for _, h := range f.holders(look) {
		r := h.row()
		idle := amount(h.idle).styled(Warn)
		if h.idle == 0 {
			idle.Style = Faint
		}
		r.Cells = []Cell{
			text(r.ID), amount(h.gpus), use(h.totals.use.mean(), look), idle, h.totals.memory.cell("%.0fG", 1024), h.totals.watts.cell("%.0f", 1),
			h.held(look.Now), h.idleSeen(), text(strings.Join(h.nodes, ",")),
		}
		t.Rows = append(t.Rows, r)
	}
	t.Total = len(t.Rows)
	return t
}

func (f *Fleet) waste(look *Look) Table {
	t := Table{Sort: "-idle_held_gpus", Columns: []Column{
		{Key: "pod", Head: "HOLDER", Names: true, Least: 20},
		{Key: "idle_held_gpus", Head: "IDLE-HELD", Right: true},
		{Key: "gpus", Head: "OF GPUS", Right: true},
		{Key: "idle_seconds_seen", Head: "IDLE FOR", Right: true},
		{Key: "held_seconds", Head: "HELD", Right: true, Least: 5},
		{Key: "memory_used_gib", Head: "MEM", Right: true, Least: 5},
		{Key: "power_watts", Head: "W", Right: true, Least: 4},
		{Key: "usd_per_hour", Head: "USD/H", Right: true},
		{Key: "nodes", Head: "NODES", Wide: true, Names: true},
	}, Legend: "IDLE FOR: since the last use of these GPUs; ≥: it may be longer"}
	if f.Holders != nil {
		return f.mostWaste(t, look)
	}
	for _, h := range f.holders(look) {
		if h.idle == 0 {
			continue
		}
		r := h.row()
		r.Cells = []Cell{
			text(r.ID), amount(h.idle).styled(Warn), amount(h.gpus), h.idleSeen(), h.held(look.Now), h.totals.memory.cell("%.0fG", 1024),
			h.totals.watts.cell("%.0f", 1), h.cost.cell("%.2f", 1), text(strings.Join(h.nodes, ",")),
		}
		t.Rows = append(t.Rows, r)
	}
	t.Total = len(t.Rows)
	return t
}

// mostWaste are the pods that the controller named. What else they hold was not read.
func (f *Fleet) mostWaste(t Table, look *Look) Table {
	t.Total = f.Holders.Total
	all, own := look.Prices.All()
	for i := range f.Holders.Holders {
		x := &f.Holders.Holders[i]
		h := holder{namespace: x.Namespace, pod: x.Pod, idle: x.GPUs, since: x.HeldSince, idleAtLeast: x.IdleAtLeast, nodes: []string{x.Node}}
		if !x.IdleSince.IsZero() {
			h.idleFor = max(0, look.Now.Sub(x.IdleSince))
		}
		switch {
		case own:
			h.cost = sum{total: all * x.GPUs, known: 1}
		case x.Cost != nil && !look.Prices.Has():
			h.cost = sum{total: *x.Cost, known: 1, unknown: int(math.Ceil(x.Unpriced))}
		}
		r := h.row()
		r.Cells = []Cell{text(r.ID), amount(h.idle).styled(Warn), {}, h.idleSeen(), h.held(look.Now), {}, {}, h.cost.cell("%.2f", 1), text(x.Node)}
		t.Rows = append(t.Rows, r)
	}
	return t
}
