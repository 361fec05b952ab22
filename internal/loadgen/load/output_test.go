// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"
	"time"
)

// On a terminal, the last line says how far the load is. It goes before the next row, and at the end.
func TestLiveOutput(t *testing.T) {
	plan := []Sequence{
		{Kinds: []string{"tensor"}, Duration: 10 * time.Second, Report: time.Second},
		{Kinds: []string{"tensor", "dram", "fp64"}, Duration: 20 * time.Second, Report: time.Second},
	}
	var out strings.Builder
	o := NewOutput(&out, false, true, plan)
	start := time.Unix(1e9, 0)
	bar := func(sequence int, from, to float64) string {
		t.Helper()
		out.Reset()
		at := func(s float64) time.Time { return start.Add(time.Duration(s * 1e9)) }
		if err := o.Step(Step{Sequence: sequence, Load: "tensor", Start: at(from), End: at(to), Duty: 0.6, Busy: 0.6}); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		return text[strings.LastIndex(text, "\n")+1:]
	}
	full, empty := strings.Repeat("█", barWidth/2), strings.Repeat("░", barWidth/2)
	if got, want := bar(0, 0, 5), "tensor "+full+empty+" 5 of 10 s, load 1 of 2, 25s left, busy 60 %"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got := bar(1, 11, 21) // the sequence began a second late
	if !strings.Contains(got, full+empty+" 10 of 20 s, load 2 of 2, 10s left") || len([]rune(got)) > lineWidth {
		t.Errorf("%q", got)
	}
	if !strings.HasPrefix(out.String(), "\r\x1b[K") {
		t.Errorf("the bar stays: %q", out.String())
	}
	bar(1, 30, 99)
	out.Reset()
	o.Close()
	if out.String() != "\r\x1b[K" {
		t.Errorf("at the end: %q", out.String())
	}
	if NewOutput(&out, true, true, plan).live {
		t.Error("a bar between JSON lines")
	}
	if Bar(plan, Step{Sequence: 7}, start) != "" || Bar(nil, Step{}, start) != "" {
		t.Error("a bar without a plan")
	}
}
