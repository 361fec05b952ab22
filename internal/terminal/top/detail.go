// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
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
	"GPUS         of a node, a character for each, by index: ▁ to █ use, · free, ? stale, x lost",
	"REPLICAS     serving + starting / desired / maximum",
	"IDLE FOR     since its last use while these pods have held it; ≥: or for longer.",
	"             With --agent, as long as this program has seen it",
}

// wrapped returns a text in lines of the screen's width, behind an indent.
func (m *Model) wrapped(text, indent string, style Style) []string {
	var out []string
	for _, line := range fold(text, m.width-len(indent)-1) {
		out = append(out, indent+m.setup.Theme.paint(line, style))
	}
	return out
}

// fold returns a text in lines of that width, which end between words where they can.
func fold(text string, width int) []string {
	return strings.Split(ansi.Wrap(text, max(10, width), ""), "\n")
}

// hang returns a text in lines of the screen's width: the first one behind first, the others behind an indent.
func (m *Model) hang(first, text string, indent int) []string {
	indent = min(indent, m.width-12)
	out := fold(text, m.width-max(indent, termtext.Width(first)))
	for i := range out {
		if i > 0 {
			first = strings.Repeat(" ", max(0, indent))
		}
		out[i] = first + out[i]
	}
	return out
}

// pager returns the lines that are on the screen. What is too long for a line goes on below it.
func (m *Model) pager(lines []string) []string {
	var all []string
	for _, l := range lines {
		if text := strings.TrimLeft(l, " "); ansi.StringWidth(l) > m.width {
			indent := len(l) - len(text)
			all = append(all, m.hang(l[:min(indent, m.width-12)], text, indent+2)...)
		} else {
			all = append(all, l)
		}
	}
	m.scroll = max(0, min(m.scroll, len(all)-m.bodyLines()))
	out := all[m.scroll:min(len(all), m.scroll+m.bodyLines()+1)]
	for i, l := range out {
		out[i] = ansi.Truncate(l, m.width, "…") // on a screen of a few cells
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

// factName is the width of a fact's name.
const factName = 22

// facts are names with their values, which follow them in the arguments. Nothing of them is cut.
func (m *Model) facts(pairs ...string) (out []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		name, value := termtext.Clean(pairs[i]), termtext.Clean(pairs[i+1])
		if value == "" {
			value = unknown
		}
		if termtext.Width(name) > factName {
			out = append(out, m.hang("  ", name+" "+value, factName+3)...)
			continue
		}
		out = append(out, m.hang("  "+termtext.Fit(name, factName, false)+" ", value, factName+3)...)
	}
	return out
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
		out = append(out, m.facts(c.Head, r.Cells[i].Text)...)
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
			out = append(append(out, ""), m.facts(t.Kind, state, "  address", t.URL)...)
		}
	}
	return out
}

func (m *Model) gpuDetail(g *GPU) []string {
	out := append([]string{m.headline(g.Name())}, m.facts("UUID", g.UUID, "model", g.Model, "pool", g.Pool, "state", string(g.State), "age of the values", short(g.Age))...)
	for _, o := range g.Owners {
		out = append(out, m.facts("held by", strings.TrimSuffix(ownerName(&o)+" container "+o.Container, " container "))...)
	}
	if !g.HeldSince.IsZero() {
		out = append(out, m.facts("held for", short(m.read.Sub(g.HeldSince)))...)
	}
	if idle := idleCell(g.idleFor(m.look())); idle.Text != "" {
		out = append(out, m.facts("idle for", idle.Text)...)
	}
	if d := g.Device; d != nil {
		return append(out, m.deviceDetail(d)...)
	}
	out = append(out, m.facts(
		"utilisation", number(g.Utilization, "%.0f %%").Text, "memory used", number(g.MemoryUsedMiB, "%.0f MiB").Text,
		"memory", number(g.MemoryTotalMiB, "%.0f MiB").Text, "power", number(g.PowerWatts, "%.1f W").Text, "temperature", number(g.TemperatureC, "%.0f °C").Text)...)
	return append(out, "", "  all fields: gpupilot top --agent HOST:PORT, of the agent of this node")
}

// deviceDetail has all fields of an agent, with their units.
func (m *Model) deviceDetail(d *Device) []string {
	out := m.facts("PCI", d.PCIBusID)
	if d.Error != "" {
		out = append(out, m.wrapped(termtext.Clean(d.Error), "  ", Bad)...)
	}
	for _, x := range d.XIDs {
		out = append(out, m.facts(fmt.Sprintf("XID %d", x.Code), fmt.Sprintf("%d times, last at %s", x.Count, x.Last.Local().Format(time.TimeOnly)))...)
	}
	for _, p := range d.processes() {
		out = append(out, m.facts(fmt.Sprintf("process %d", p.PID), p.Name+" "+p.Type+" "+p.Namespace+"/"+p.Pod)...)
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
	out := []string{m.headline(workloadID(w))}
	if d := w.Decision; d != nil {
		out = append(out, m.facts("why "+plural(int(d.Replicas), "replica"), d.Reason())...)
		if x := m.fleet.Detail; x != nil && workloadID(&x.Workload) == workloadID(w) && x.Changes != nil {
			head := "what would change it"
			for _, c := range append(x.Changes, "no other single signal")[:max(1, len(x.Changes))] {
				out = append(out, m.facts(head, c)...)
				head = ""
			}
		}
	}
	out = append(out, m.facts("scales", w.Kind+" "+w.Target+" from "+fmt.Sprint(w.Min)+" to "+fmt.Sprint(w.Max)+", "+w.Actuation)...)
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
		value := unknown
		if s.Value != nil {
			value = number(s.Value, "%.4g").Text + unitOf(s.Unit)
		}
		out = append(out, m.facts(s.Name, fmt.Sprintf("%s, target %.4g%s", value, s.Target, unitOf(s.Unit)))...)
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
	return out
}

func (m *Model) decisionDetail(d *view.Decision) []string {
	out := []string{m.headline(fmt.Sprintf("DECIDED at %s: %d → %d, %s", d.Time.Local().Format(time.TimeOnly), d.Current, d.Replicas, termtext.Clean(string(d.Rule))))}
	out = append(out, m.facts("replicas", fmt.Sprintf("%d serving, %d starting, %d without a node", d.Serving, d.Starting, d.Unschedulable))...)
	for _, s := range d.Steps {
		out = append(out, fmt.Sprintf("  %d → %d  %s", s.Before, s.After, termtext.Clean(string(s.Rule))))
		out = append(out, m.wrapped(termtext.Clean(s.Sentence), "      ", Plain)...)
	}
	if len(d.Steps) == 0 {
		out = append(out, m.wrapped(termtext.Clean(d.Sentence), "  ", Plain)...)
	}
	return out
}
