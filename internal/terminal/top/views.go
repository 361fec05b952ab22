// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Name is the name of a view.
type Name string

// The views, in the order of their keys.
const (
	Pools     Name = "fleet"
	Nodes     Name = "nodes"
	GPUs      Name = "gpus"
	Workloads Name = "workloads"
	Pods      Name = "pods"
	Waste     Name = "waste"
	Decisions Name = "decisions"
)

// Names are the views: key 1 is the first.
var Names = []Name{Pools, Nodes, GPUs, Workloads, Pods, Waste, Decisions}

// ofAgent reports whether a view has data without a controller.
func (n Name) ofAgent() bool { return n != Workloads && n != Decisions && n != Pools }

// TableOf returns the rows of a view.
func (f *Fleet) TableOf(name Name, look *Look) Table {
	f = f.Only(look.Namespace)
	switch name {
	case Nodes:
		return f.nodes(look)
	case GPUs:
		return f.gpus(look)
	case Workloads:
		return f.workloads(look)
	case Pods:
		return f.pods(look)
	case Waste:
		return f.waste(look)
	case Decisions:
		return f.decisions(look)
	}
	return f.pools(look)
}

// barCells is the width of a bar.
const barCells = 8

// use is a utilisation in percent with a bar.
func use(percent *float64) Cell {
	if percent == nil {
		return Cell{}
	}
	return Cell{Text: fmt.Sprintf("%s %3.0f%%", termtext.Bar(*percent/100, barCells), *percent), Value: *percent}
}

// some is a count that is noted if it is not zero.
func some(n int, style Style) Cell {
	if n == 0 {
		return count(0).styled(Faint)
	}
	return count(n).styled(style)
}

func (f *Fleet) pools(look *Look) Table {
	t := Table{Sort: "pool", Total: len(f.View.Pools) + f.View.Omitted.Pools, Columns: []Column{
		{Key: "pool", Head: "POOL", Names: true, Least: 8},
		{Key: "models", Head: "MODELS", Wide: true, Names: true},
		{Key: "nodes", Head: "NODES", Right: true},
		{Key: "gpus", Head: "GPUS", Right: true},
		{Key: "active_gpus", Head: "ACTIVE", Right: true},
		{Key: "idle_held_gpus", Head: "IDLE-HELD", Right: true},
		{Key: "free_gpus", Head: "FREE", Right: true},
		{Key: "stale_gpus", Head: "STALE", Right: true, Rank: 1},
		{Key: "utilization_percent", Head: "USE OF HELD", Least: 13},
		{Key: "problem_nodes", Head: "PROBLEMS", Right: true},
	}}
	priced := f.View.Fleet.Cost != nil && !look.Prices.Has()
	if priced {
		t.Columns = append(t.Columns, Column{Key: "usd_per_hour", Head: "USD/H", Right: true, Rank: 2}, Column{Key: "idle_held_usd_per_hour", Head: "IDLE USD/H", Right: true, Rank: 2})
	}
	for i := range f.View.Pools {
		p := &f.View.Pools[i]
		name := p.Name
		if name == "" {
			name = "(no pool)"
		}
		t.Rows = append(t.Rows, Row{ID: p.Name, Labels: map[string]string{"pool": p.Name}, Cells: []Cell{
			text(name), text(strings.Join(p.Models, ", ")), count(p.Nodes), count(p.GPUs), some(p.Active, Good), some(p.Idle, Warn), count(p.Free),
			some(p.Stale, Faint), use(p.Utilization), some(p.ProblemNodes, Bad),
		}})
		if priced {
			held, idle, _ := costsOf(&p.Counts)
			row := &t.Rows[len(t.Rows)-1]
			row.Cells = append(row.Cells, held.cell("%.2f", 1), idle.cell("%.2f", 1))
		}
	}
	return t
}

// totals are sums of a node's or a pod's GPUs. A sum over GPUs of which some have no value
// is a lower bound.
type totals struct {
	memory, watts, use sum
}

type sum struct {
	total          float64
	known, unknown int
}

func (s *sum) add(v *float64) {
	if v == nil {
		s.unknown++
		return
	}
	s.known++
	s.total += *v
}

// cell is the sum, divided by unit.
func (s *sum) cell(format string, unit float64) Cell {
	if s.known == 0 {
		return Cell{}
	}
	c := Cell{Text: fmt.Sprintf(format, s.total/unit), Value: s.total / unit}
	if s.unknown > 0 {
		c.Text = "≥" + c.Text
	}
	return c
}

// mean returns the mean of what is known; nil if nothing is.
func (s *sum) mean() *float64 {
	if s.known == 0 {
		return nil
	}
	m := s.total / float64(s.known)
	return &m
}

func (t *totals) add(g *GPU) {
	if g.State == view.Stale { // its values are old
		t.memory.unknown++
		t.watts.unknown++
		return
	}
	t.memory.add(g.MemoryUsedMiB)
	t.watts.add(g.PowerWatts)
	t.use.add(g.Utilization)
}

// hot is the temperature from which a GPU is noted, in °C. GPUs for servers slow down
// between 85 and 95 °C.
const hot = 83

func temperature(c *float64) Cell {
	cell := number(c, "%.0f")
	if c != nil && *c >= hot {
		cell.Style = Bad
	}
	return cell
}

// memory is the used memory of the total, in GiB.
func memory(used, total *float64) Cell {
	if used == nil {
		return Cell{}
	}
	c := Cell{Text: fmt.Sprintf("%.0fG", *used/1024), Value: *used}
	if total != nil {
		c.Text = fmt.Sprintf("%.0f/%.0fG", *used/1024, *total/1024)
	}
	return c
}

// byNode are the totals of nodes, of all GPUs that were read.
func (f *Fleet) byNode() map[string]*totals {
	out := make(map[string]*totals, len(f.Nodes))
	for i := range f.GPUs {
		g := &f.GPUs[i]
		t := out[g.Node]
		if t == nil {
			t = &totals{}
			out[g.Node] = t
		}
		t.add(g)
	}
	return out
}

// The cells of a node's GPUs: by use in steps of 20 %, free, stale.
var cellGlyphs = map[rune]rune{'0': '▁', '1': '▃', '2': '▅', '3': '▆', '4': '█', '.': '·', '-': '?'}

func cells(s string, look *Look) Cell {
	shown := s
	if !look.ASCII {
		shown = strings.Map(func(r rune) rune {
			if g, ok := cellGlyphs[r]; ok {
				return g
			}
			return r
		}, s)
	}
	return Cell{Text: termtext.Clean(shown), Value: termtext.Clean(s)}
}

func (f *Fleet) nodes(look *Look) Table {
	t := Table{Sort: "problem", Total: f.TotalNodes, Columns: []Column{
		{Key: "node", Head: "NODE", Names: true, Least: 12},
		{Key: "pool", Head: "POOL", Wide: true, Names: true},
		{Key: "model", Head: "MODEL", Wide: true, Names: true},
		{Key: "cells", Head: "GPUS", Least: 8},
		{Key: "utilization_percent", Head: "USE", Right: true, Least: 4},
		{Key: "active_gpus", Head: "ACTIVE", Wide: true, Right: true},
		{Key: "idle_held_gpus", Head: "IDLE-HELD", Right: true},
		{Key: "free_gpus", Head: "FREE", Right: true},
		{Key: "memory_used_gib", Head: "MEM", Wide: true, Right: true, Least: 5},
		{Key: "power_watts", Head: "W", Right: true, Least: 5, Rank: 2},
		{Key: "temperature_celsius", Head: "°C", Right: true, Least: 3, Rank: 1},
		{Key: "problem", Head: "PROBLEM", Rest: true, Least: 12},
	}, Legend: "GPUS: a character for each by index, ▁ to █ by use, · free, ? stale, x lost"}
	per := f.byNode()
	for i := range f.Nodes {
		n := &f.Nodes[i]
		x := per[n.Name]
		if x == nil {
			if look.Namespace != "" {
				continue // no GPU of the namespace
			}
			x = &totals{}
		}
		problem := Cell{Text: "ok", Style: Faint}
		if len(n.Problems) > 0 {
			problem = text(strings.Join(n.Problems, "; "), Bad)
		}
		t.Rows = append(t.Rows, Row{
			ID: n.Name, Labels: map[string]string{"node": n.Name, "pool": n.Pool, "model": n.Model},
			Cells: []Cell{
				text(n.Name), text(n.Pool), text(n.Model), cells(n.Cells, look), number(n.Utilization, "%.0f%%"), some(n.Active, Good), some(n.Idle, Warn), count(n.Free),
				x.memory.cell("%.0fG", 1024), x.watts.cell("%.0f", 1), temperature(n.MaxTemperatureC), problem,
			},
		})
	}
	return t
}

// stateStyle is the style of a GPU's state.
func stateStyle(s view.State) Style {
	switch s {
	case view.Active:
		return Good
	case view.Idle:
		return Warn
	}
	return Faint
}

func (f *Fleet) gpus(look *Look) Table {
	t := Table{Sort: "-utilization_percent", Total: f.TotalGPUs, Columns: []Column{
		{Key: "gpu", Head: "GPU", Names: true, Least: 10},
		{Key: "uuid", Head: "UUID", Wide: true, Names: true},
		{Key: "model", Head: "MODEL", Wide: true, Names: true},
		{Key: "state", Head: "STATE", Least: 9},
		{Key: "utilization_percent", Head: "USE", Right: true, Least: 4},
		{Key: "trend", Head: "LAST 60 S", Least: trendPoints},
		{Key: "memory_used_mib", Head: "MEM", Right: true, Least: 7, Rank: 2},
		{Key: "power_watts", Head: "W", Right: true, Least: 3, Rank: 3},
		{Key: "temperature_celsius", Head: "°C", Right: true, Least: 3},
	}}
	if f.Agent {
		t.Columns = append(t.Columns,
			Column{Key: "tensor_active_percent", Head: "TENSOR", Wide: true, Right: true}, Column{Key: "dram_active_percent", Head: "DRAM", Wide: true, Right: true},
			Column{Key: "clocks_held_by", Head: "THROTTLE", Wide: true}, Column{Key: "xids", Head: "XID", Wide: true})
	}
	t.Columns = append(t.Columns, Column{Key: "idle_seconds_seen", Head: "IDLE FOR", Wide: true, Right: true}, Column{Key: "pods", Head: "POD", Names: true, Rest: true, Least: 12})
	if look.Trends == nil {
		t.Columns[t.column("trend")].Wide = true
	}
	for i := range f.GPUs {
		t.Rows = append(t.Rows, f.gpuRow(&f.GPUs[i], look))
	}
	return t
}

func (f *Fleet) gpuRow(g *GPU, look *Look) Row {
	row := Row{ID: g.UUID, Labels: map[string]string{"node": g.Node, "pool": g.Pool, "model": g.Model, "state": string(g.State)}}
	if len(g.Owners) > 0 {
		row.Labels["namespace"], row.Labels["pod"] = g.Owners[0].Namespace, g.Owners[0].Pod
	}
	state, trend := text(string(g.State), stateStyle(g.State)), Cell{Text: look.Trends.Spark(g.UUID, look.ASCII)}
	if g.State == view.Stale && g.Age > 0 {
		state.Text += " " + short(g.Age)
	}
	used, watts, celsius := number(g.Utilization, "%.0f%%"), number(g.PowerWatts, "%.0f"), temperature(g.TemperatureC)
	if d := g.Device; d != nil {
		if limit := d.value("DCGM_FI_DEV_ENFORCED_POWER_LIMIT"); limit != nil && g.PowerWatts != nil {
			watts.Text += fmt.Sprintf("/%.0f", *limit)
		}
	}
	row.Cells = []Cell{text(g.Name()), text(g.UUID), text(g.Model), state, used, trend, memory(g.MemoryUsedMiB, g.MemoryTotalMiB), watts, celsius}
	if f.Agent {
		row.Cells = append(row.Cells, g.Device.extra()...)
	}
	row.Cells = append(row.Cells, idleCell(g.idleFor(look)), text(g.holders()))
	if g.State == view.Stale {
		for i := range row.Cells {
			row.Cells[i].Style = Faint
		}
	}
	return row
}

// extra are the columns that only an agent has.
func (d *Device) extra() []Cell {
	percent := func(field string) Cell {
		v := d.value(field)
		if v != nil {
			p := 100 * *v
			v = &p
		}
		return number(v, "%.0f%%")
	}
	throttle := Cell{}
	if mask := d.value("DCGM_FI_DEV_CLOCKS_EVENT_REASONS"); mask != nil {
		throttle = text(throttleReasons(uint64(*mask)))
	}
	var xids []string
	for _, x := range d.XIDs {
		xids = append(xids, fmt.Sprint(x.Code))
	}
	xid := Cell{Text: "none", Style: Faint}
	if len(xids) > 0 {
		xid = text(strings.Join(xids, ","), Bad)
	}
	return []Cell{percent("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), percent("DCGM_FI_PROF_DRAM_ACTIVE"), throttle, xid}
}

// throttleReasons names the bits of NVML's nvmlClocksEventReasons that are held against a GPU.
func throttleReasons(mask uint64) string {
	var out []string
	for _, r := range []struct {
		bit  uint64
		name string
	}{{0x04, "power cap"}, {0x08, "hw slowdown"}, {0x10, "sync boost"}, {0x20, "sw thermal"}, {0x40, "hw thermal"}, {0x80, "power brake"}} {
		if mask&r.bit != 0 {
			out = append(out, r.name)
		}
	}
	if len(out) == 0 {
		return "no"
	}
	return strings.Join(out, "+")
}
