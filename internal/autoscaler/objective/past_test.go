// SPDX-License-Identifier: Apache-2.0

package objective

import (
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/promise"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

var chat = history.Workload{Namespace: "llm", Kind: history.KindAutoscaler, Name: "chat"}

// stepsOf returns the steps of a store with these minutes before t0, in which a minute below
// zero has no row.
func stepsOf(t testing.TB, from, until time.Time, minutes ...float64) []promise.Load {
	t.Helper()
	store := history.New(history.Config{})
	for i, x := range minutes {
		if x < 0 {
			continue
		}
		row := []history.Value{{Metric: "p", Mean: x, Max: x, Count: math.NaN()}, {Metric: "o", Mean: x / 4, Max: x / 2, Count: math.NaN()}}
		if err := store.Append(chat, t0.Add(time.Duration(i-len(minutes))*time.Minute), row); err != nil {
			t.Fatal(err)
		}
	}
	return Steps(store, chat, []history.Metric{"p", "o"}, from, until)
}

func TestStepsOfMinutes(t *testing.T) {
	minute := func(n float64) time.Time { return t0.Add(time.Duration(n * float64(time.Minute))) }
	if got := stepsOf(t, minute(-3), t0); got != nil {
		t.Errorf("%v without a minute", got)
	}
	got := stepsOf(t, minute(-3), t0, 400, 800, -1, 1200)
	if len(got) != 12 {
		t.Fatalf("%d steps in three minutes", len(got))
	}
	for i, want := range []float32{800, promise.Missing.Prompt, 1200} {
		high := float32(0)
		for _, l := range got[4*i : 4*i+4] {
			if l.Prompt != want || (l == promise.Missing) != (want < 0) {
				t.Errorf("minute %d: %v, want %v", i, l, want)
			}
			high = max(high, l.Output)
		}
		if want > 0 && high != want/2 {
			t.Errorf("minute %d: at most %v, want %v", i, high, want/2)
		}
	}
	// Until a time between two minutes, steps are where they were, to half a step.
	got = stepsOf(t, minute(-3.3), minute(-0.3), 400, 800, 800, 1200)
	if n := len(got); n != 12 || got[0].Prompt != 400 || got[n-1].Prompt != 1200 || got[n-4].Prompt != 800 {
		t.Errorf("%v", got)
	}
}

func BenchmarkSteps(b *testing.B) {
	minutes := make([]float64, 26*60)
	for i := range minutes {
		minutes[i] = float64(4000 + i%97*31)
	}
	store := history.New(history.Config{})
	for i, x := range minutes {
		row := []history.Value{{Metric: "p", Mean: x, Max: x, Count: math.NaN()}, {Metric: "o", Mean: x / 4, Max: x / 2, Count: math.NaN()}}
		for _, m := range []history.Metric{"a", "b", "c", "d", "e", "f"} {
			row = append(row, history.Value{Metric: m, Mean: x, Max: x, Count: math.NaN()})
		}
		if err := store.Append(chat, t0.Add(time.Duration(i-len(minutes))*time.Minute), row); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		Steps(store, chat, []history.Metric{"p", "o"}, t0.Add(-26*time.Hour), t0)
	}
}
