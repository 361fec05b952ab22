// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"math"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The lines above and below the rows.
const (
	headLines = 5 // title, states, sums, problems, tabs
	footLines = 1
)

// bodyLines is the number of lines between head and foot, without the columns' heads.
func (m *Model) bodyLines() int { return max(1, m.height-headLines-footLines-1) }

// listLines is the number of lines for the rows of a list. A low screen has no legend.
func (m *Model) listLines() int {
	if m.table.Legend != "" && m.height >= 16 {
		return m.bodyLines() - 1
	}
	return m.bodyLines()
}

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.Frame(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "gpupilot top"
	return v
}

// Frame returns the lines of the screen.
func (m *Model) Frame() []string {
	lines := m.head()
	switch {
	case m.mode == details:
		lines = append(lines, m.pager(m.detail())...)
	case m.mode == help:
		lines = append(lines, m.pager(helpText)...)
	case m.fleet == nil:
		lines = append(lines, m.waiting()...)
	default:
		lines = append(lines, m.rows()...)
	}
	for len(lines) < m.height-footLines {
		lines = append(lines, "")
	}
	lines = append(lines[:m.height-footLines], m.foot())
	if m.setup.ASCII {
		for i := range lines {
			lines[i] = asciiLine(lines[i])
		}
	}
	return lines
}

// asciiLine replaces what is not ASCII, and keeps our own escape sequences.
func asciiLine(s string) string {
	parts := strings.Split(s, "\x1b")
	for i := range parts {
		parts[i] = termtext.ASCII(parts[i])
	}
	return strings.Join(parts, "\x1b")
}

// spans are parts of a line in styles. They are cut to a width together.
type spans struct {
	b     strings.Builder
	theme Theme
	left  int
}

func (s *spans) add(text string, style Style) {
	text = termtext.Truncate(text, s.left)
	s.left -= termtext.Width(text)
	s.b.WriteString(s.theme.paint(text, style))
}

func (m *Model) line() *spans { return &spans{theme: m.setup.Theme, left: m.width} }

// waiting is the body before the first read.
func (m *Model) waiting() []string {
	if m.err == nil {
		return []string{"", "  reading …"}
	}
	return append([]string{""}, m.wrapped(termtext.Clean(m.err.Error()), "  ", Bad)...)
}

// head are the lines that all views share.
func (m *Model) head() []string {
	return []string{m.title(), m.states(), m.sums(), m.problems(), m.tabs()}
}

func (m *Model) title() string {
	s := m.line()
	s.add("GPUPilot", Strong)
	if m.fleet == nil {
		return s.b.String()
	}
	status, style := m.fleet.View.Time.Local().Format("15:04:05"), Faint
	switch age := m.cfg.Now().Sub(m.read); {
	case m.paused:
		status, style = "PAUSED at "+status+", p goes on", Warn
	case m.err != nil:
		status, style = "NO ANSWER for "+short(m.cfg.Now().Sub(m.since))+", values of "+status, Bad
	case age > 10*time.Second:
		status, style = "values are "+short(age)+" old", Warn
	}
	where := "  " + termtext.Clean(m.fleet.Source)
	if m.cfg.Namespace != "" {
		where += "  namespace " + termtext.Clean(m.cfg.Namespace)
	}
	s.add(termtext.Fit(where, max(0, m.width-len("GPUPilot")-termtext.Width(status)-1), false), Plain)
	s.add(" ", Plain)
	s.add(status, style)
	return s.b.String()
}

// states counts the GPUs by state.
func (m *Model) states() string {
	s := m.line()
	if m.fleet == nil {
		return ""
	}
	c := &m.fleet.View.Fleet
	s.add(plural(c.GPUs, "GPU")+" on "+plural(c.Nodes, "node")+"  ", Strong)
	style := func(n int, x Style) Style {
		if n == 0 {
			return Faint
		}
		return x
	}
	s.add(grouped(c.Active)+" active", style(c.Active, Good))
	s.add("  ", Plain)
	s.add(grouped(c.Idle)+" idle-held", style(c.Idle, Warn))
	s.add("  ", Plain)
	s.add(grouped(c.Free)+" free", style(c.Free, Plain))
	if c.Stale > 0 {
		s.add("  ", Plain)
		s.add(grouped(c.Stale)+" stale", Bad)
	}
	s.add("  ", Plain)
	if n := min(40, s.left); c.GPUs > 0 && n >= 10 {
		s.add(m.stateBar(c, n), Plain)
	}
	return s.b.String()
}

// stateBar draws the shares of the states.
func (m *Model) stateBar(c *view.Counts, n int) string {
	var b strings.Builder
	done := 0
	for i, x := range []int{c.Active, c.Active + c.Idle, c.Active + c.Idle + c.Free, c.GPUs} {
		to := x * n / c.GPUs
		b.WriteString(strings.Repeat([]string{"█", "▒", "░", "?"}[i], to-done))
		done = to
	}
	return b.String()
}

// sums are the hottest GPU, the cost and, where there is room, use.
func (m *Model) sums() string {
	if m.fleet == nil {
		return ""
	}
	s := m.line()
	c := &m.fleet.View.Fleet
	cost := ""
	if held, idle, free := m.fleet.costs(m.look()); held.known+free.known > 0 {
		cost = " · USD/h: " + held.usd() + " held"
		if c.Idle > 0 {
			cost += " (" + idle.usd() + " idle-held)"
		}
		if c.Free > 0 {
			cost += " + " + free.usd() + " free"
		}
	}
	if h := m.fleet.View.Hottest; h != nil {
		t := temperature(&h.TemperatureC)
		s.add("hottest "+t.Text+" °C ", t.Style)
		name := termtext.Clean(deviceName(h.Node, h.UUID, h.Index))
		s.add(termtext.TruncateMiddle(name, max(s.left/5, s.left-termtext.Width(cost))), t.Style)
	}
	s.add(cost, Plain)
	if use := " · use of held " + number(c.Utilization, "%.0f%%").Text; c.Utilization != nil && termtext.Width(use) <= s.left {
		s.add(use, Plain)
	}
	return s.b.String()
}

// usd is an amount of dollars, with cents below 100. If GPUs have no price, it is a lower bound.
func (s *sum) usd() string {
	if s.known == 0 {
		return unknown
	}
	text := fmt.Sprintf("%.2f", s.total)
	if s.total >= 100 || s.total == math.Trunc(s.total) {
		text = grouped(int(math.Round(s.total)))
	}
	if s.unknown > 0 {
		text = "≥" + text
	}
	return text
}

// problems says what is wrong, and how much was decided.
func (m *Model) problems() string {
	if m.fleet == nil {
		return ""
	}
	s := m.line()
	c := &m.fleet.View.Fleet
	if c.ProblemNodes > 0 {
		s.add(grouped(c.ProblemNodes)+" of "+plural(c.Nodes, "node")+" with problems", Bad)
	} else {
		s.add("no node with problems", Faint)
	}
	if m.fleet.Agent {
		return s.b.String()
	}
	bad := 0
	for i := range m.fleet.View.Workloads {
		if m.fleet.View.Workloads[i].Problem != "" {
			bad++
		}
	}
	if bad > 0 {
		s.add(fmt.Sprintf(" · %d of %s", bad, plural(m.fleet.TotalWorkloads, "workload")), Bad)
	} else {
		s.add(" · "+plural(m.fleet.TotalWorkloads, "workload"), Faint)
	}
	n := 0
	for i := range m.fleet.View.Recent {
		if m.fleet.View.Time.Sub(m.fleet.View.Recent[i].Decision.Time) < time.Hour {
			n++
		}
	}
	s.add(" · "+plural(n, "change")+" of replicas in 1 h", Faint)
	return s.b.String()
}

func (m *Model) tabs() string {
	s := m.line()
	for i, n := range Names {
		if m.fleet != nil && m.fleet.Agent && !n.ofAgent() && n != Pools {
			continue
		}
		label := fmt.Sprintf(" %d %s ", i+1, n)
		if n != m.setup.View {
			s.add(label, Faint)
		} else if termtext.Width(label) <= s.left {
			s.left -= termtext.Width(label)
			s.b.WriteString(reverse(label))
		}
	}
	return s.b.String()
}

// rows are the lines of the table.
func (m *Model) rows() []string {
	widths := m.table.layout(m.width, m.setup.Wide || m.width >= wideFrom)
	lines := []string{m.heads(widths)}
	if len(m.table.Rows) == 0 {
		lines = append(lines, m.setup.Theme.paint("  "+m.nothing(), Faint))
	}
	n := m.listLines()
	at := m.current()
	m.first = min(max(m.first, at-n+1), max(0, at))
	m.first = max(0, min(m.first, len(m.table.Rows)-n))
	for i := m.first; i < min(len(m.table.Rows), m.first+n); i++ {
		lines = append(lines, m.row(&m.table.Rows[i], widths, i == at))
	}
	if m.setup.View == Pools {
		lines = append(lines, m.digest(n-len(lines)+1)...)
	}
	if n < m.bodyLines() {
		for len(lines) <= n {
			lines = append(lines, "")
		}
		lines = append(lines, m.setup.Theme.paint(termtext.Truncate(m.table.Legend, m.width), Faint))
	}
	return lines
}

// wideFrom is the width from which the columns of wide tables are shown.
const wideFrom = 140

// nothing says why a list is empty.
func (m *Model) nothing() string {
	switch {
	case m.filter != nil && !m.filter.Empty():
		return "nothing matches the filter; esc removes it"
	case m.fleet.Agent && m.setup.View == Pools:
		return "pools are known to a controller only; 3 shows this node's GPUs"
	case m.setup.View == Waste:
		return "no pod holds an idle GPU"
	case m.setup.View == Decisions:
		return "no replicas were changed"
	}
	return "nothing here"
}

func (m *Model) heads(widths []int) string {
	var b strings.Builder
	order, descending := strings.CutPrefix(m.order(), "-")
	for i, w := range widths {
		if w == 0 {
			continue
		}
		c := m.table.Columns[i]
		head := c.Head
		if c.Key == order || strings.EqualFold(c.Head, order) {
			mark := "↑"
			if descending {
				mark = "↓"
			}
			if termtext.Width(head) < w {
				head += mark
			} else {
				head = termtext.Truncate(head, w-1) + mark
			}
		}
		b.WriteString(termtext.Fit(head, w, c.Right))
		b.WriteString(strings.Repeat(" ", gap))
	}
	return m.setup.Theme.paint(strings.TrimRight(b.String(), " "), Strong)
}

// row draws one row.
func (m *Model) row(r *Row, widths []int, selected bool) string {
	var b strings.Builder
	total := lineWidth(widths)
	for i, w := range widths {
		if w == 0 {
			continue
		}
		s := m.table.Columns[i].cellText(r.Cells[i].Text, w)
		style := r.Cells[i].Style
		if r.Cells[i].Text == "" {
			style = Faint
		}
		if selected {
			style = Plain
		}
		b.WriteString(m.setup.Theme.paint(s, style))
		if total -= w + gap; total > 0 {
			b.WriteString(strings.Repeat(" ", gap))
		}
	}
	if selected {
		return reverse(termtext.Fit(b.String(), m.width, false))
	}
	return strings.TrimRight(b.String(), " ")
}

// digest fills the rest of the fleet's view: problems, idle-held GPUs and decisions.
func (m *Model) digest(n int) []string {
	var out []string
	section := func(head string, lines []string, most int) {
		if len(lines) == 0 || n-len(out) < 3 {
			return
		}
		out = append(out, "", m.setup.Theme.paint(head, Strong))
		for _, l := range lines[:min(len(lines), most, n-len(out))] {
			out = append(out, termtext.Truncate(l, m.width))
		}
	}
	f := m.fleet.Only(m.cfg.Namespace)
	var lines []string
	for i := range f.View.Workloads {
		if w := &f.View.Workloads[i]; w.Problem != "" {
			lines = append(lines, fmt.Sprintf("  %s  %s", termtext.Clean(workloadID(w)), termtext.Clean(w.Problem)))
		}
	}
	var nodes []string
	for i := range f.View.Problems {
		if p := &f.View.Problems[i]; p.Alike > 0 { // the first of a group
			nodes = append(nodes, "  "+termtext.Clean(f.extent(p)+": "+strings.Join(p.Problems, "; ")))
		}
	}
	most := max(3, n/3)
	section("PROBLEMS", append(nodes[:min(len(nodes), max(most-len(lines), most/2))], lines...), most) // causes before effects
	lines = nil
	waste := f.waste(m.look())
	_ = waste.SortBy(waste.Sort)
	for i := range waste.Rows {
		c := waste.Rows[i].Cells
		line := fmt.Sprintf("  %s  holds %s idle", c[0].Text, c[1].Text)
		for _, x := range [][3]string{{" of ", c[2].Text}, {", for ", c[3].Text}, {", ", c[7].Text, " USD/h"}, {", ", c[8].Text, " USD since each is idle"}} {
			if x[1] != "" {
				line += x[0] + x[1] + x[2]
			}
		}
		lines = append(lines, line)
	}
	section("IDLE-HELD", lines, max(2, n/4))
	lines = nil
	for _, r := range f.decisions(m.look()).Rows {
		c := r.Cells
		lines = append(lines, "  "+c[0].Text+"  "+c[1].Text+"  "+c[2].Text+"  "+c[4].Text)
	}
	section("LAST CHANGES OF REPLICAS", lines, n)
	return out
}

// extent says which nodes a line of problems stands for, with how many GPUs and for how long, where that is known.
func (f *Fleet) extent(n *view.NodeSummary) string {
	s := n.Name
	if n.Alike > 1 {
		s += " and " + plural(n.Alike-1, "other node")
	}
	if n.Pool != "" {
		s += " of " + n.Pool
	}
	if n.AlikeGPUs > 0 {
		s += ", " + plural(n.AlikeGPUs, "GPU")
	}
	if since := n.AlikeSince; !since.IsZero() {
		s += map[bool]string{true: ", the first", false: ","}[n.Alike > 1] + " for " + short(f.View.Time.Sub(since))
	}
	return s
}

// foot is the last line: what is edited, a note, or the keys.
func (m *Model) foot() string {
	s := m.line()
	switch {
	case m.mode == filter:
		s.add("/"+m.input+"_", Strong)
		s.add("   regular expression, !not, -l key=value, -f fuzzy; enter, esc", Faint)
	case m.mode == command:
		s.add(":"+m.input+"_", Strong)
		s.add("   fleet, nodes, gpus, workloads, pods, waste, decisions, q", Faint)
	case m.note != "":
		s.add(termtext.Clean(m.note), Warn)
	case m.mode == details || m.mode == help:
		s.add("esc back  ↑↓ scroll", Faint)
	default:
		if m.filter != nil && !m.filter.Empty() {
			s.add("/"+termtext.Clean(m.filter.String())+"  ", Warn)
		}
		if total := m.table.Total; total > len(m.table.Rows) {
			s.add(grouped(m.offset+len(m.table.Rows))+" of "+grouped(total)+"  ", Plain)
		}
		s.add("enter details  / filter  s S sort  : view  space pin  p pause  ? help  q quit", Faint)
	}
	return s.b.String()
}
