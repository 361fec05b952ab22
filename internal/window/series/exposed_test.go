// SPDX-License-Identifier: Apache-2.0

package series

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// exposeTexts shows lines with these labels at a time, each with a value of its own.
func exposeTexts(t *testing.T, a *Target, at time.Time, texts ...string) bool {
	t.Helper()
	var list []Exposed
	var b Batch
	for i, text := range texts {
		r, ok := a.Ref(Key{Line: text})
		if !ok {
			t.Fatalf("no ref for %s", text)
		}
		list = append(list, Exposed{Labels: textLabels(text), Ref: r, Scale: 1})
		b.Add(r, float64(i))
	}
	whole := a.Expose(at, list)
	if _, err := a.Append(at, &b); err != nil {
		t.Fatal(err)
	}
	return whole
}

func spans(a *Target) (out []string) {
	for _, x := range a.Exposures(nil) {
		until := "open"
		if x.Until != Open {
			until = fmt.Sprint((x.Until - t0.UnixNano()) / 1e9)
		}
		out = append(out, fmt.Sprintf("%s %d-%s", x.Labels, (x.From-t0.UnixNano())/1e9, until))
	}
	slices.Sort(out)
	return out
}

func TestExposuresFollowThePage(t *testing.T) {
	s := New(Config{Span: 10 * time.Second})
	a := s.Target("a", TargetLabels{})
	exposeTexts(t, a, sec(100), "x", "y")
	exposeTexts(t, a, sec(101), "x")
	exposeTexts(t, a, sec(102), "x", "y", "z")
	if d := cmp.Diff([]string{"x 100-open", "y 100-101", "y 102-open", "z 102-open"}, spans(a)); d != "" {
		t.Error(d)
	}
	for i := 103; i < 120; i++ {
		exposeTexts(t, a, sec(float64(i)), "x", fmt.Sprint("y", i/10))
	}
	if d := cmp.Diff([]string{"x 100-open", "y10 103-110", "y11 110-open"}, spans(a)[:3]); d != "" {
		t.Error(d)
	}
	exposeTexts(t, a, sec(50), "x") // the target's clock was set back
	if d := cmp.Diff([]string{"x 50-open"}, spans(a)); d != "" {
		t.Error(d)
	}
	checkLedger(t, s)
}

func TestATargetPaysForItsLabels(t *testing.T) {
	s := New(Config{Span: time.Minute, MaxBytes: 1 << 20})
	a := s.Target("hostile", TargetLabels{Namespace: "ml", Pod: "a"})
	var list []Exposed
	for i := range 2000 {
		text := fmt.Sprintf("%04d%04000d", i, 0)
		if r, ok := a.Ref(Key{Line: text}); ok {
			list = append(list, Exposed{Labels: textLabels(text), Ref: r, Scale: 1})
		}
	}
	if a.Expose(sec(1), list) {
		t.Error("8 MB of labels fit into 1 MiB")
	}
	checkLedger(t, s)
	if s.Stats().Refused[RefusedSeries] == 0 || len(s.Limited()) != 1 {
		t.Errorf("no refusal is counted: %+v", s.Stats())
	}
	honest := s.Target("honest", TargetLabels{Node: "n"})
	if !exposeTexts(t, honest, sec(1), "x", "y") {
		t.Error("an honest target pays too")
	}
	long := textLabels(fmt.Sprintf("%09000d", 0))
	if r, _ := honest.Ref(Key{Line: "x"}); honest.Expose(sec(2), []Exposed{{Labels: long, Ref: r, Scale: 1}}) {
		t.Error("a label set of 9,000 bytes was stored")
	}
}

func TestEndedExposuresAreLimited(t *testing.T) {
	s := New(Config{Span: time.Hour})
	a := s.Target("a", TargetLabels{})
	for i := range 3 * maxClosed {
		exposeTexts(t, a, sec(float64(1+i)), fmt.Sprint("x", i))
	}
	if n := len(a.Exposures(nil)); n > maxClosed+4 {
		t.Errorf("%d exposures are kept", n)
	}
	checkLedger(t, s)
}

// A target that forgets what nobody reads takes little more than one that never had it, and
// keeps the values of its GPUs and of lines that are still read.
func TestForgottenLinesTakeNoMemory(t *testing.T) {
	s := New(Config{Span: 5 * time.Minute})
	gpus := make([]Key, 32)
	for i := range gpus {
		gpus[i] = Key{Device: fmt.Sprint("GPU-", i/4), Field: gpu.FieldID(203 + i%4)}
	}
	fill := func(a *Target, from, to int, lines ...string) {
		for n := from; n < to; n++ {
			var b Batch
			for i := range gpus {
				if r, ok := a.Ref(gpus[i]); ok {
					b.Add(r, float64(n%100))
				}
			}
			var list []Exposed
			for _, text := range lines {
				if r, ok := a.Ref(Key{Line: text}); ok {
					list = append(list, Exposed{Labels: textLabels(text), Ref: r, Scale: 1})
					b.Add(r, float64(n))
				}
			}
			a.Expose(sec(float64(n)), list)
			if _, err := a.Append(sec(float64(n)), &b); err != nil {
				t.Fatal(err)
			}
		}
	}
	never, forgot := s.Target("never", TargetLabels{}), s.Target("forgot", TargetLabels{})
	fill(never, 0, 400, "kept")
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprint("line", i))
	}
	fill(forgot, 0, 300, append(lines, "kept")...)
	full := forgot.account.bytes.Load()
	forgot.ForgetEnded()
	fill(forgot, 300, 400, "kept")
	if got, want := forgot.account.bytes.Load(), never.account.bytes.Load(); got > want+want/10 || full < want+want/2 {
		t.Errorf("%d bytes, before it forgot %d; a target that never had the lines has %d", got, full, want)
	}
	if d := cmp.Diff(spans(never), spans(forgot)); d != "" {
		t.Error(d)
	}
	oldest := func(a *Target, k Key) float64 {
		r, ok := a.Ref(k)
		if !ok {
			t.Fatalf("%+v has no series", k)
		}
		v, _ := a.columns.ring.At(a.columns.series[r.id].column, a.columns.ring.Slot(0))
		return v
	}
	for _, k := range append([]Key{{Line: "kept"}}, gpus...) {
		if got, want := oldest(forgot, k), oldest(never, k); got != want || got == 0 {
			t.Errorf("%+v began with %v, want %v", k, got, want)
		}
	}
	checkLedger(t, s)
}

func TestReadUpHasFailures(t *testing.T) {
	s := New(Config{})
	a := s.Target("a", TargetLabels{})
	exposeTexts(t, a, sec(1), "x")
	a.Fail(sec(2))
	a.Fail(sec(3))
	exposeTexts(t, a, sec(4), "x")
	a.Fail(sec(5))
	at := func(n float64) int64 { return sec(n).UnixNano() }
	want := []ring.Stamped{{Stamp: at(2)}, {Stamp: at(3)}, {Stamp: at(4), Value: 1}, {Stamp: at(5)}}
	if d := cmp.Diff(want, a.ReadUp(nil, at(2), at(5))); d != "" {
		t.Error(d)
	}
	for i := range 2 * maxFailures {
		a.Fail(sec(float64(10 + i)))
	}
	if n := len(a.failures.From(0)); n > maxFailures {
		t.Errorf("%d failures are kept", n)
	}
	checkLedger(t, s)
}
