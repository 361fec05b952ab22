// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
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
	cost           view.IdleCost // of the idle-held ones, while it is added up
	unpriced       int           // idle-held GPUs without a price
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
		d, atLeast := g.idleFor(look)
		if h.idle == 0 || d < h.idleFor {
			h.idleFor, h.idleAtLeast = d, atLeast
		}
		h.idle += share
		usd := look.usd(g)
		h.cost.Add(usd, share, cmp.Or(d, -1), atLeast)
		h.unpriced += boolInt(usd == nil)
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
	return g.GPU.IdleFor(look.Now)
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
			text(r.ID), amount(h.gpus), use(h.totals.use.mean()), idle, h.totals.memory.cell("%.0fG", 1024), h.totals.watts.cell("%.0f", 1),
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
		{Key: "memory_used_gib", Head: "MEM", Right: true, Least: 5, Rank: 1},
		{Key: "power_watts", Head: "W", Right: true, Least: 4, Rank: 2},
		{Key: "usd_per_hour", Head: "USD/H", Right: true},
		{Key: "usd_since_idle", Head: "IDLE USD", Right: true},
		{Key: "nodes", Head: "NODES", Wide: true, Names: true},
	}}
	if f.Holders != nil {
		return f.mostWaste(t, look)
	}
	var all view.IdleCost
	for _, h := range f.holders(look) {
		if h.idle == 0 {
			continue
		}
		r, cost := h.row(), h.cost.Sum()
		r.Cells = []Cell{
			text(r.ID), amount(h.idle).styled(Warn), amount(h.gpus), h.idleSeen(), h.held(look.Now), h.totals.memory.cell("%.0fG", 1024),
			h.totals.watts.cell("%.0f", 1), usdCell(cost.Cost, cost.Unpriced > 0), usdCell(cost.SinceIdle, cost.AtLeast), text(strings.Join(h.nodes, ",")),
		}
		all.AddAll(&h.cost)
		t.Rows = append(t.Rows, r)
	}
	cost := all.Sum()
	t.Total, t.Legend = len(t.Rows), wasteLegend(&cost)
	return t
}

// wasteLegend explains the waste, with what all of it has cost.
func wasteLegend(all *view.IdleCost) string {
	s := "IDLE FOR: since the last use of these GPUs; ≥: or more"
	if all.SinceIdle != nil {
		s += "; IDLE USD: the cost since each is idle, in all " + (&sum{*all.SinceIdle, 1, boolInt(all.AtLeast)}).usd()
	}
	return s
}

// usdCell is an amount of dollars, which may be more; nil: it is not known.
func usdCell(usd *float64, atLeast bool) Cell {
	if usd == nil {
		return Cell{}
	}
	return (&sum{*usd, 1, boolInt(atLeast)}).cell("%.2f", 1)
}

// mostWaste are the pods that the controller named. What else they hold was not read.
func (f *Fleet) mostWaste(t Table, look *Look) Table {
	counted := func(c *view.IdleCost) *view.IdleCost { // by an older controller's prices: not known
		if f.Holders.Prices != look.Prices.String() {
			return &view.IdleCost{}
		}
		return c
	}
	t.Total, t.Legend = f.Holders.Total, wasteLegend(counted(&f.Holders.IdleCost))
	for i := range f.Holders.Holders {
		x := &f.Holders.Holders[i]
		h := holder{namespace: x.Namespace, pod: x.Pod, idle: x.GPUs, since: x.HeldSince, idleAtLeast: x.IdleAtLeast, nodes: []string{x.Node}}
		if !x.IdleSince.IsZero() {
			h.idleFor = max(0, look.Now.Sub(x.IdleSince))
		}
		r, cost := h.row(), counted(&x.IdleCost)
		r.Cells = []Cell{text(r.ID), amount(h.idle).styled(Warn), {}, h.idleSeen(), h.held(look.Now), {}, {}, usdCell(cost.Cost, cost.Unpriced > 0), usdCell(cost.SinceIdle, cost.AtLeast), text(x.Node)}
		t.Rows = append(t.Rows, r)
	}
	return t
}
