// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpupilot/gpupilot/internal/serve/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

var helpText = []string{
	"1 … 7, tab   views: fleet, nodes, gpus, workloads, pods, waste, decisions",
	":            a view by its name",
	"↑ ↓ j k g G  select a row; page up, page down",
	"enter        all values of the row; esc goes back",
	"/            filter: a regular expression over the row; !expression for others;",
	"             -l node=n1,state!=free by labels (node, pool, model, state,",
	"             namespace, pod, name, kind); -f text for letters in that order",
	"s  S         sort by the next column; reverse the order",
	"space        keep the row at the top",
	"p            pause, continue",
	"+  -         read less often, more often: 1s to 1m",
	"w  c         more columns; colours: standard, contrast, none",
	"W            save view, order, interval, columns, colours and pinned rows",
	"q            quit",
	"",
	"active       a pod holds the GPU, and uses it",
	"idle-held    a pod holds the GPU, and its use is below 1 %",
	"free         no pod holds the GPU",
	"stale        no value in the last seconds: its state is unknown",
	"–  ≥         unknown; at least: some values are unknown",
	"GPUS         of a node, a character for each: ▁ to █ use, · free, ? stale",
	"REPLICAS     serving + starting / desired / maximum",
	"IDLE FOR     as long as this program has seen it",
}

// wrapped returns a text in lines of the screen's width, behind an indent.
func (m *Model) wrapped(text, indent string, style Style) []string {
	var out []string
	width := max(10, m.width-len(indent)-1)
	for line := range strings.SplitSeq(ansi.Wrap(text, width, ""), "\n") {
		out = append(out, indent+m.setup.Theme.paint(line, style))
	}
	return out
}

// pager returns the lines that are on the screen.
func (m *Model) pager(lines []string) []string {
	m.scroll = max(0, min(m.scroll, len(lines)-m.bodyLines()))
	lines = lines[m.scroll:min(len(lines), m.scroll+m.bodyLines()+1)]
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = ansi.Truncate(l, m.width, "…")
	}
	return out
}

// detail returns all that is known about the selected row.
func (m *Model) detail() []string {
	if m.current() < 0 {
		return []string{"", "  " + termtext.Clean(m.selected) + " is gone"}
	}
	switch m.setup.View {
	case Workloads:
		for i := range m.fleet.View.Workloads {
			if w := &m.fleet.View.Workloads[i]; workloadID(w) == m.selected {
				return m.workloadDetail(w)
			}
		}
	case Decisions:
		for i := range m.fleet.View.Recent {
			if e := &m.fleet.View.Recent[i]; eventID(e) == m.selected {
				return append([]string{m.headline(e.Namespace + "/" + e.Name)}, m.decisionDetail(&e.Decision)...)
			}
		}
	case GPUs:
		for i := range m.fleet.GPUs {
			if g := &m.fleet.GPUs[i]; g.UUID == m.selected {
				return m.gpuDetail(g)
			}
		}
	}
	return m.rowDetail(&m.table.Rows[m.current()])
}

func (m *Model) headline(s string) string { return m.setup.Theme.paint(termtext.Clean(s), Strong) }

// fact is a name and a value in a line.
func fact(name, value string) string {
	if value == "" {
		value = unknown
	}
	return "  " + termtext.Fit(termtext.Clean(name), 22, false) + " " + termtext.Clean(value)
}

// rowDetail are a row's cells, one a line, and its GPUs.
func (m *Model) rowDetail(r *Row) []string {
	out := []string{m.headline(r.ID)}
	for i, c := range m.table.Columns {
		if c.Rest {
			out = append(out, "  "+c.Head)
			out = append(out, m.wrapped(r.Cells[i].Text, "    ", r.Cells[i].Style)...)
			continue
		}
		out = append(out, fact(c.Head, r.Cells[i].Text))
	}
	var gpus []string
	for i := range m.fleet.GPUs {
		g := &m.fleet.GPUs[i]
		if m.setup.View == Nodes && g.Node != r.ID || m.setup.View == Pools && g.Pool != r.ID {
			continue
		}
		if (m.setup.View == Pods || m.setup.View == Waste) && !slices.ContainsFunc(g.Owners, func(o view.Owner) bool { return ownerName(&o) == r.ID }) {
			continue
		}
		used := number(g.Utilization, "%.0f%%").Text
		gpus = append(gpus, "  "+termtext.Fit(termtext.Clean(g.Name()), 28, false)+" "+termtext.Fit(string(g.State), 9, false)+" "+termtext.Fit(used, 5, true)+"  "+termtext.Clean(g.holders()))
	}
	if len(gpus) > 0 {
		out = append(append(out, "", m.headline("GPUS")), gpus...)
	}
	for i := range m.fleet.View.Targets {
		if t := &m.fleet.View.Targets[i]; m.setup.View == Nodes && t.Node == r.ID && t.Kind != view.KindPod {
			state := "answers"
			if !t.Up {
				state = "no answer: " + t.Error
			}
			out = append(out, "", fact(t.Kind, state), fact("  address", t.URL))
		}
	}
	return out
}

func (m *Model) gpuDetail(g *GPU) []string {
	out := []string{m.headline(g.Name()), fact("UUID", g.UUID), fact("model", g.Model), fact("pool", g.Pool), fact("state", string(g.State)), fact("age of the values", short(g.Age))}
	for _, o := range g.Owners {
		out = append(out, fact("held by", strings.TrimSuffix(ownerName(&o)+" container "+o.Container, " container ")))
	}
	if !g.HeldSince.IsZero() {
		out = append(out, fact("held for", short(m.read.Sub(g.HeldSince))))
	}
	if d := g.Device; d != nil {
		return append(out, m.deviceDetail(d)...)
	}
	return append(out,
		fact("utilisation", number(g.Utilization, "%.0f %%").Text), fact("memory used", number(g.MemoryUsedMiB, "%.0f MiB").Text),
		fact("memory", number(g.MemoryTotalMiB, "%.0f MiB").Text), fact("power", number(g.PowerWatts, "%.1f W").Text),
		fact("temperature", number(g.TemperatureC, "%.0f °C").Text), "",
		"  all fields: gpupilot top --agent HOST:PORT, with the address of this node's agent")
}

// deviceDetail has all fields of an agent, with their units.
func (m *Model) deviceDetail(d *Device) []string {
	out := []string{fact("PCI", d.PCIBusID)}
	if d.Error != "" {
		out = append(out, m.wrapped(termtext.Clean(d.Error), "  ", Bad)...)
	}
	for _, x := range d.XIDs {
		out = append(out, fact(fmt.Sprintf("XID %d", x.Code), fmt.Sprintf("%d times, last at %s", x.Count, x.Last.Local().Format(time.TimeOnly))))
	}
	for _, p := range d.processes() {
		out = append(out, fact(fmt.Sprintf("process %d", p.PID), p.Name+" "+p.Type+" "+p.Namespace+"/"+p.Pod))
	}
	out = append(out, "", m.headline("FIELDS"))
	for _, name := range slices.Sorted(maps.Keys(d.Values)) {
		v := d.Values[name]
		out = append(out, "  "+termtext.Fit(termtext.Clean(name), 44, false)+" "+termtext.Fit(termtext.Clean(v.Value.String()), 14, true)+" "+termtext.Clean(v.Unit))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Labels)) {
		out = append(out, "  "+termtext.Fit(termtext.Clean(name), 44, false)+" "+termtext.Clean(d.Labels[name]))
	}
	return out
}

func (m *Model) workloadDetail(w *view.Workload) []string {
	out := []string{
		m.headline(workloadID(w)), fact("scales", w.Kind+" "+w.Target+" from "+fmt.Sprint(w.Min)+" to "+fmt.Sprint(w.Max)+", "+w.Actuation),
	}
	for _, p := range []string{w.Problem, w.Waiting} {
		if p != "" {
			out = append(out, m.wrapped(termtext.Clean(p), "  ", Bad)...)
		}
	}
	if by := heldBy(w); by != "" {
		out = append(out, m.wrapped("held by "+termtext.Clean(by), "  ", Warn)...)
	}
	if w.Deletion != "" {
		out = append(out, m.wrapped("when it is deleted, "+termtext.Clean(w.Deletion), "  ", Plain)...)
	}
	for _, s := range w.Signals {
		value := number(s.Value, "%.4g").Text
		if value == "" {
			value = unknown
		}
		out = append(out, fact(s.Name, fmt.Sprintf("%s, target %.4g%s", value, s.Target, unitOf(s.Unit))))
	}
	for i := range w.Objectives {
		o := &w.Objectives[i]
		out = append(out, "", m.headline("OBJECTIVE of "+o.Signal))
		out = append(out, m.wrapped(termtext.Clean(o.Sentence), "  ", Plain)...)
		for _, p := range o.Problems {
			out = append(out, m.wrapped(termtext.Clean(p), "  ", Bad)...)
		}
	}
	if w.Decision != nil {
		out = append(out, "")
		out = append(out, m.decisionDetail(w.Decision)...)
	}
	return append(out, "", "  what would change it: gpupilot explain "+termtext.Clean(workloadID(w)))
}

func (m *Model) decisionDetail(d *view.Decision) []string {
	out := []string{m.headline(fmt.Sprintf("DECIDED at %s: %d → %d, %s", d.Time.Local().Format(time.TimeOnly), d.Current, d.Replicas, termtext.Clean(string(d.Rule))))}
	out = append(out, fact("replicas", fmt.Sprintf("%d serving, %d starting, %d without a node", d.Serving, d.Starting, d.Unschedulable)))
	for _, s := range d.Steps {
		out = append(out, fmt.Sprintf("  %d → %d  %s", s.Before, s.After, termtext.Clean(string(s.Rule))))
		out = append(out, m.wrapped(termtext.Clean(s.Sentence), "      ", Plain)...)
	}
	if len(d.Steps) == 0 {
		out = append(out, m.wrapped(termtext.Clean(d.Sentence), "  ", Plain)...)
	}
	return out
}
