// SPDX-License-Identifier: Apache-2.0

package load

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Output prints steps as they come: a table, or JSON lines. It may be used by several goroutines.
type Output struct {
	mu     sync.Mutex
	out    io.Writer
	json   bool
	live   bool // out is a terminal
	plan   []Sequence
	header bool
	start  time.Time
	begun  map[int]time.Time // when each sequence began
	bar    string
}

// NewOutput returns an output for the sequences that will run. live adds a progress bar below the table.
func NewOutput(out io.Writer, asJSON, live bool, plan []Sequence) *Output {
	return &Output{out: out, json: asJSON, live: live && !asJSON, plan: plan, begun: map[int]time.Time{}}
}

const rowFormat = "%-8s %-12s %-4s %6s %6s  %-24s %-16s %6s %8s %6s %5s  %s"

// Step prints one step.
func (o *Output) Step(s Step) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.json {
		return json.NewEncoder(o.out).Encode(s)
	}
	if o.start.IsZero() {
		o.start = s.Start
	}
	o.clear()
	if !o.header {
		o.header = true
		if err := o.line(fmt.Sprintf(rowFormat, "TIME", "LOAD", "GPU", "DUTY", "BUSY", "GENERATED", "RATE", "PEAK", "CLOCK", "POWER", "TEMP", "THROTTLE")); err != nil {
			return err
		}
	}
	if err := o.line(Row(s, o.start)); err != nil {
		return err
	}
	if o.live {
		if _, ok := o.begun[s.Sequence]; !ok {
			o.begun[s.Sequence] = s.Start
		}
		o.bar = Bar(o.plan, s, o.begun[s.Sequence])
		_, _ = io.WriteString(o.out, o.bar)
	}
	return nil
}

func (o *Output) line(text string) error {
	_, err := fmt.Fprintln(o.out, strings.TrimRight(text, " "))
	return err
}

// clear removes the progress bar.
func (o *Output) clear() {
	if o.bar != "" {
		_, _ = io.WriteString(o.out, "\r\x1b[K")
		o.bar = ""
	}
}

// Close removes the progress bar.
func (o *Output) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clear()
}

// Row is a step as a row of the table. Times count from start.
func Row(s Step, start time.Time) string {
	generated := "unknown"
	if s.Generated != nil {
		generated = amount(*s.Generated, s.Unit == "ratio") + " ± " + amount(s.Error, s.Unit == "ratio")
	}
	rate := ""
	if s.Rate != nil {
		rate = fmt.Sprintf("%.2f %s", *s.Rate, s.RateUnit)
	}
	return fmt.Sprintf(rowFormat, fmt.Sprintf("%.1fs", s.End.Sub(start).Seconds()), s.Load, s.GPU.label(),
		fmt.Sprintf("%.3f", s.Duty), fmt.Sprintf("%.3f", s.Busy), generated, rate,
		optional("%.0f%%", s.Share, 100), optional("%.0f MHz", s.ClockMHz, 1), optional("%.0f W", s.Watts, 1), optional("%.0f °C", s.Celsius, 1),
		strings.Join(s.Throttle, ", "))
}

// label is a short name of the GPU.
func (g GPU) label() string {
	if g.MIG {
		return "MIG"
	}
	return fmt.Sprint(g.Index)
}

// amount is a ratio, or bytes per second with a prefix.
func amount(v float64, isRatio bool) string {
	if isRatio {
		return fmt.Sprintf("%.4f", v)
	}
	return fmt.Sprintf("%.2f GB/s", v/1e9)
}

func optional(format string, v *float64, factor float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v*factor)
}

const (
	barWidth  = 24 // characters of the bar
	lineWidth = 79 // of its line, which must not wrap
)

// Bar says how far the plan is at the end of a step, for a terminal. start is when the step's sequence began.
func Bar(plan []Sequence, s Step, start time.Time) string {
	if s.Sequence < 0 || s.Sequence >= len(plan) {
		return ""
	}
	q := plan[s.Sequence]
	done := min(q.Duration, max(0, s.End.Sub(start)))
	left := q.Duration - done
	for _, next := range plan[s.Sequence+1:] {
		left += next.Duration
	}
	full := int(barWidth * done.Seconds() / max(1e-9, q.Duration.Seconds()))
	bar := strings.Repeat("█", full) + strings.Repeat("░", barWidth-full)
	name := []rune(Names(q.Kinds))
	if len(name) > 15 {
		name = append(name[:14], '…')
	}
	of := ""
	if len(plan) > 1 {
		of = fmt.Sprintf(", load %d of %d", s.Sequence+1, len(plan))
	}
	text := []rune(fmt.Sprintf("%s %s %.0f of %.0f s%s, %v left, busy %.0f %%", string(name), bar, done.Seconds(), q.Duration.Seconds(), of,
		left.Round(time.Second), 100*s.Busy))
	return string(text[:min(len(text), lineWidth)])
}
