// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// note is one event on the screen.
type note struct {
	at   time.Duration
	who  string
	text string
}

// view holds the contents of the screen.
type view struct {
	title   string
	load    string
	ui      string
	kube    string
	elapsed time.Duration
	length  time.Duration // 0: until Ctrl-C
	round   time.Duration // of a load that repeats
	tracks  []*track
	labels  []string // beside the tracks
	notes   []note
}

// The few colours, as ANSI escapes.
const (
	plain  = "\x1b[0m"
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	red    = "\x1b[31m"
	cyan   = "\x1b[36m"
)

// The screen's measures, in columns.
const (
	labelWidth = 24
	barWidth   = 20 // of a utilisation; half of it on a screen narrower than wide
	wide       = 100
	maxChart   = 100
	// chartReplicas fill a chart's height: one step of the line is one replica.
	chartReplicas = 8
)

// commands are how to look at the demo, by what they are for.
func (v *view) commands() [][2]string {
	return [][2]string{
		{"page", v.ui},
		{"kubectl", "export KUBECONFIG=" + v.kube},
		{"gpupilot", "bin/gpupilot top --controller " + v.ui + "    so get and doctor; bin/gpupilot explain llm"},
	}
}

// render returns the lines of the screen, none wider than width.
func (v *view) render(width, height int) []string {
	out := []string{
		bold + "GPUPilot demo" + plain + dim + "  " + v.title + plain,
	}
	for _, c := range append(v.commands(), [2]string{"load", v.load}, [2]string{}) {
		out = append(out, dim+fmt.Sprintf("  %-12s", c[0])+plain+c[1])
	}
	out = append(out, v.charts(min(maxChart, width-labelWidth-16))...)
	out = append(out, "")
	for i, t := range v.tracks {
		out = append(out, row(t, v.labels[i], width))
	}
	out = append(out, "", bold+"  What happened"+plain)
	room := max(3, height-len(out)-1)
	out = append(out, v.log(width, room)...)
	for i := range out {
		out[i] = cut(out[i], width)
	}
	return out
}

// charts returns the lines of the load and of both workloads' replicas.
func (v *view) charts(width int) []string {
	if width < 10 || len(v.tracks) == 0 {
		return nil
	}
	span := v.length
	if span == 0 {
		span = v.round
	}
	from := max(0, v.elapsed-span)
	now := v.tracks[0].now
	clockText := clock(v.elapsed)
	switch {
	case v.elapsed == 0:
		clockText = "the first replica of each loads its model"
	case v.length > 0:
		clockText += " of " + clock(v.length)
	}
	render := func(name string, t *track, l line, text string) string {
		l.from, l.span, l.width = from, span, width
		return fmt.Sprintf("  %-*s%s%s%s  %s", labelWidth-2, name, l.colour, l.sparkline(t.samples), plain, text)
	}
	offered := line{highest: peakLoad * 1.05, colour: cyan, value: func(s sample) float64 { return s.offered }}
	need := line{highest: chartReplicas, colour: dim, value: func(s sample) float64 { return float64(s.need) }}
	replicas := line{highest: chartReplicas, value: func(s sample) float64 { return float64(s.replicas) }}
	out := []string{
		render("offered load", v.tracks[0], offered, fmt.Sprintf("%.1f req/s", now.offered)),
		render("replicas it needs", v.tracks[0], need, fmt.Sprint(now.need)),
	}
	for _, t := range v.tracks {
		out = append(out, render("replicas of "+t.name, t, replicas, fmt.Sprint(t.now.replicas)))
	}
	return append(out, fmt.Sprintf("  %-*s%s%s%s", labelWidth-2, "", dim, clockText, plain))
}

// line is one line of the charts.
type line struct {
	from, span time.Duration // the time that it covers
	width      int           // in characters
	highest    float64       // the value that fills the line's height
	colour     string
	value      func(sample) float64
}

// sparkline draws the highest value of each time slot. Slots without a sample are
// blank.
func (l *line) sparkline(all []sample) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	cells := []rune(strings.Repeat(" ", l.width))
	high := make([]float64, l.width)
	for _, s := range all {
		i := int(float64(s.at-l.from) / float64(l.span) * float64(l.width))
		if s.at < l.from || i < 0 || i >= l.width {
			continue
		}
		high[i] = max(high[i], l.value(s))
		n := int(high[i]/l.highest*float64(len(levels)-1) + 0.5)
		cells[i] = levels[min(max(1, n), len(levels)-1)]
	}
	return string(cells)
}

// row returns the current state of a workload.
func row(t *track, label string, width int) string {
	s := t.now
	cells := barWidth
	if width < wide {
		cells /= 2
	}
	colour := green
	switch {
	case s.util > 95:
		colour = red
	case s.util > target*overTolerance:
		colour = yellow
	}
	starting := max(0, s.replicas-s.serving)
	pods := green + strings.Repeat("●", min(s.serving, maxReplicas)) + plain +
		yellow + strings.Repeat("○", min(starting, maxReplicas)) + plain
	counts := fmt.Sprintf("%d serving", s.serving)
	if starting > 0 {
		counts += fmt.Sprintf(" + %d starting", starting)
	}
	if going := s.serving - s.replicas; going > 0 {
		counts += fmt.Sprintf(", %d on the way out", going)
	}
	return fmt.Sprintf("  %s%-8s%s%s%-14s%s%s%s%s %3.0f %%  %s  %s  %s%.0f waiting%s",
		bold, t.name, plain, dim, label, plain, colour, bar(s.util, cells), plain, s.util, pods, counts, dim, s.queue, plain)
}

// bar draws a utilisation in this many cells, with a mark at the target.
func bar(util float64, width int) string {
	cells := []rune(strings.Repeat("░", width))
	for i := range min(int(util/100*float64(width)+0.5), width) {
		cells[i] = '█'
	}
	mark := int(target / 100 * float64(width))
	return string(cells[:mark]) + plain + "│" + dim + string(cells[mark:])
}

// log returns the last notes that fit into this many lines.
func (v *view) log(width, lines int) []string {
	var out []string
	for _, n := range v.notes {
		out = append(out, n.lines(width)...)
	}
	return out[max(0, len(out)-lines):]
}

// lines breaks the note into lines of the width, the later ones indented.
func (n note) lines(width int) []string {
	const indent = 18
	var out []string
	head := fmt.Sprintf("  %s%s%s  %-8s ", dim, clock(n.at), plain, n.who)
	line := ""
	flush := func() {
		out = append(out, head+line)
		head, line = strings.Repeat(" ", indent), ""
	}
	for word := range strings.FieldsSeq(n.text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > max(20, width-indent) {
			flush()
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	flush()
	return out
}

// cut shortens a line to so many columns, not counting escapes.
func cut(s string, width int) string {
	var b strings.Builder
	columns, escape := 0, false
	for _, r := range s {
		switch {
		case r == '\x1b':
			escape = true
		case escape:
			escape = r < '@' || r > '~' || r == '['
		default:
			if columns++; columns > width {
				return b.String() + plain
			}
		}
		b.WriteRune(r)
	}
	return b.String()
}

// line returns the view as one line, for output without a terminal.
func (v *view) line() string {
	var b strings.Builder
	now := v.tracks[0].now
	fmt.Fprintf(&b, "%s  load %5.1f req/s needs %d", clock(v.elapsed), now.offered, now.need)
	for _, t := range v.tracks {
		s := t.now
		fmt.Fprintf(&b, "  | %s %3.0f %% replicas %d (%d serving)", t.name, s.util, s.replicas, s.serving)
		if s.queue >= 1 {
			fmt.Fprintf(&b, " %.0f waiting", s.queue)
		}
	}
	return b.String()
}
