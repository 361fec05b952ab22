// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// epoch is a minute at which tests begin.
var epoch = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(minutes int) time.Time { return epoch.Add(time.Duration(minutes) * time.Minute) }

func workload(namespace, name string) Workload { return Workload{namespace, "GPUAutoscaler", name} }

// one is a row with one metric without a count.
func one(mean float64) []Value {
	return []Value{{Metric: "signal", Mean: mean, Max: mean, Count: math.NaN()}}
}

func mustAppend(t testing.TB, s *Store, w Workload, minute int, values []Value) {
	t.Helper()
	if err := s.Append(w, at(minute), values); err != nil {
		t.Fatal(err)
	}
}

// rows returns all rows as text, MINUTE:METRIC=MEAN/MAX/COUNT.
func rows(s *Store, w Workload) (out []string) {
	for r := range s.Rows(w, time.Unix(0, 0), time.Unix(1<<36, 0)) {
		text := fmt.Sprint(int(r.At.Sub(epoch) / time.Minute))
		for _, v := range r.Values {
			text += fmt.Sprintf(" %s=%v/%v/%v", v.Metric, v.Mean, v.Max, v.Count)
		}
		out = append(out, text)
	}
	return out
}

func TestRowsAreReadAsWritten(t *testing.T) {
	s := New(Config{})
	w := workload("ml", "chat")
	mustAppend(t, s, w, 0, []Value{{"serving", 2, 3, math.NaN()}})
	mustAppend(t, s, w, 1, []Value{{"serving", 2.5, 3, math.NaN()}, {"signal", 80, 99.5, 3}})
	mustAppend(t, s, w, 5, []Value{{"signal", 0, 0, 3}}) // zero is a value
	mustAppend(t, s, w, 6, []Value{{"signal", math.NaN(), 1, 1}, {"serving", 1, math.Inf(1), math.NaN()}})
	mustAppend(t, s, w, 7, []Value{{"signal", math.NaN(), 1, 1}}) // no value: the minute is missing
	want := []string{
		"0 serving=2/3/NaN",
		"1 serving=2.5/3/NaN signal=80/99.5/3",
		"5 signal=0/0/3",
		"6 serving=1/NaN/NaN",
	}
	if got := rows(s, w); !slices.Equal(got, want) {
		t.Errorf("rows:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for r := range s.Rows(w, at(1), at(5), "signal") {
		if len(r.Values) != 1 || r.At.Before(at(1)) || r.At.After(at(5)) {
			t.Errorf("a range and a metric select %v", r)
		}
	}
}

func TestAValueKeeps13Bits(t *testing.T) {
	for i := range 8193 {
		if got := widen(narrow(float64(i))); got != float64(i) {
			t.Fatalf("%d is stored as %v", i, got)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		v := math.Exp(r.NormFloat64() * 10) // within float32's normal numbers
		if got := widen(narrow(v)); math.Abs(got-v) > v/8192 {
			t.Fatalf("%v is stored as %v", v, got)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e39, math.MaxFloat32} {
		if got := widen(narrow(v)); !math.IsNaN(got) {
			t.Errorf("%v is stored as %v, want no value", v, got)
		}
	}
}

func TestAppendRefusesWhatItCannotOrder(t *testing.T) {
	s := New(Config{})
	w := workload("ml", "chat")
	mustAppend(t, s, w, 10, one(1))
	for minute, want := range map[int]error{10: ErrOrder, 9: ErrOrder, 10 - 14*24*60: ErrTime} {
		if err := s.Append(w, at(minute), one(2)); !errors.Is(err, want) {
			t.Errorf("minute %d: %v, want %v", minute, err, want)
		}
	}
	for _, w := range []Workload{{}, workload("", "x"), workload("ml", strings.Repeat("x", 254)), workload("ml", "\xff")} {
		if err := s.Append(w, at(11), one(2)); err == nil {
			t.Errorf("%q has been stored", w)
		}
	}
	if got := rows(s, w); len(got) != 1 || len(s.Workloads()) != 1 {
		t.Errorf("rows are %q of %v", got, s.Workloads())
	}
}

// load returns a workload with n metrics whose values change each minute.
func load(r *rand.Rand, n int) []Value {
	out := make([]Value, n)
	for i := range out {
		m := 50 + 10*r.NormFloat64()
		out[i] = Value{Metric("gpu" + fmt.Sprint(i)), m, m + 5*r.Float64(), 4}
	}
	return out
}

func TestTheLargestNamespaceLosesItsOldestMinutesFirst(t *testing.T) {
	s := New(Config{MaxBytes: 96 << 10})
	r := rand.New(rand.NewPCG(1, 2))
	small := workload("small", "x")
	for minute := range 2000 {
		mustAppend(t, s, small, minute, one(float64(minute%10)))
		for i := range 4 {
			mustAppend(t, s, workload("large", fmt.Sprint(i)), minute, load(r, 4))
		}
		if st := s.Stats(); st.Bytes > 96<<10 {
			t.Fatalf("minute %d: %d bytes", minute, st.Bytes)
		}
	}
	if got := rows(s, small); len(got) != 2000 {
		t.Errorf("the small namespace has %d minutes, want all 2000", len(got))
	}
	limited := s.Limited()
	if len(limited) != 1 || limited[0].Namespace != "large" || limited[0].Evicted == 0 {
		t.Errorf("limited are %+v, want the large namespace", limited)
	}
	for i := range 4 {
		first, last, ok := s.Span(workload("large", fmt.Sprint(i)))
		if !ok || last != at(1999) || first.After(at(1900)) || first.Before(at(100)) {
			t.Errorf("workload %d has %v to %v, want the newest minutes", i, first, last)
		}
	}
}

// A tenant that makes ever new names pays with its own minutes.
func TestNewNamesStayWithinTheLimit(t *testing.T) {
	s := New(Config{MaxBytes: 256 << 10})
	victim := workload("victim", "x")
	mustAppend(t, s, victim, 0, one(1))
	for i := range 5000 {
		name := fmt.Sprintf("%s-%d", strings.Repeat("n", 200), i)
		mustAppend(t, s, workload("hostile", name), i%5, []Value{{NewMetric("signal", strings.Repeat("m", 500), "l", "v"), 1, 1, 1}})
	}
	if st := s.Stats(); st.Bytes > 256<<10 {
		t.Errorf("%d bytes, want at most %d", st.Bytes, 256<<10)
	}
	if got := rows(s, victim); len(got) != 1 {
		t.Errorf("the victim has %d minutes, want 1", len(got))
	}
}

func TestMetricsOfAWorkloadAreBounded(t *testing.T) {
	s := New(Config{Retention: 3 * 24 * time.Hour})
	w := workload("ml", "chat")
	name := func(i int) Metric { return NewMetric("signal", "of", fmt.Sprint(i)) }
	for i := range 300 {
		mustAppend(t, s, w, i, []Value{{name(i), 1, 1, 1}, {"serving", float64(i), float64(i), 1}})
	}
	if n := len(s.Metrics(w)); n != MaxMetrics {
		t.Fatalf("%d metrics, want %d", n, MaxMetrics)
	}
	if n := s.Stats().RefusedMetrics; n != 300-MaxMetrics+1 {
		t.Errorf("%d values were refused", n)
	}
	// The first metrics age out, and make room.
	for i := 300; i < 7*24*60; i++ {
		mustAppend(t, s, w, i, []Value{{"serving", float64(i), float64(i), 1}})
		s.Expire(at(i))
	}
	mustAppend(t, s, w, 7*24*60, []Value{{"serving", 5, 5, 1}, {"signal2", 7, 7, 1}})
	if got := s.Metrics(w); !slices.Equal(got, []Metric{"serving", "signal2"}) {
		t.Errorf("metrics are %q", got)
	}
	got := rows(s, w)
	if last := got[len(got)-1]; last != "10080 serving=5/5/1 signal2=7/7/1" {
		t.Errorf("the last row is %q", last)
	}
	if len(got) < 3*24*60-maxChunkRows {
		t.Errorf("%d rows are left", len(got))
	}
}

func TestOldMinutesAndDeletedWorkloadsAgeOut(t *testing.T) {
	s := New(Config{Retention: 24 * time.Hour})
	gone, kept := workload("ml", "gone"), workload("ml", "kept")
	mustAppend(t, s, gone, 0, one(1))
	for i := range 5 * 24 * 60 {
		mustAppend(t, s, kept, i, one(float64(i%7)))
		s.Expire(at(i))
	}
	if got := s.Workloads(); !slices.Equal(got, []Workload{kept}) {
		t.Errorf("workloads are %v", got)
	}
	first, _, _ := s.Span(kept)
	if age := at(5 * 24 * 60).Sub(first); age < 24*time.Hour || age > 24*time.Hour+(maxChunkRows+1)*time.Minute {
		t.Errorf("the oldest minute is %v old, want a day and at most one chunk", age)
	}
}

func TestPrependFillsTheTimeBefore(t *testing.T) {
	s := New(Config{MaxBytes: 64 << 10})
	w := workload("ml", "chat")
	mustAppend(t, s, w, 100, one(100))
	var older []Row
	for i := range 120 {
		older = append(older, Row{at(i), one(float64(i))})
	}
	if room, err := s.Prepend(w, older, at(200)); err != nil || !room {
		t.Fatal(room, err)
	}
	mustAppend(t, s, w, 101, one(101))
	got := rows(s, w)
	if len(got) != 102 || got[0] != "0 signal=0/0/NaN" || got[100] != "100 signal=100/100/NaN" {
		t.Errorf("rows are %q", got)
	}
	var large []Row
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 10000 {
		large = append(large, Row{at(i - 15000), load(r, 4)})
	}
	if room, err := s.Prepend(w, large, at(200)); err != nil || room {
		t.Errorf("room is %v, %v: want none", room, err)
	}
	if again := rows(s, w); !slices.Equal(got, again) {
		t.Errorf("rows are %q, want no change", again)
	}
	if _, err := s.Prepend(workload("ml", "new"), older, at(200)); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(workload("ml", "new"), at(119), one(1)); !errors.Is(err, ErrOrder) {
		t.Errorf("a minute that was prepended: %v, want ErrOrder", err)
	}
}

// The metered memory is what Go's heap has.
func TestTheLimitIsTheHeap(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for _, c := range []struct{ workloads, metrics, minutes int }{{2000, 2, 3}, {200, 10, 300}, {5, 40, 5000}} {
		before := heap()
		s := New(Config{})
		r := rand.New(rand.NewPCG(1, 2))
		for minute := range c.minutes {
			for i := range c.workloads {
				mustAppend(t, s, workload(fmt.Sprint("ns", i%10), fmt.Sprint("workload", i)), minute, load(r, c.metrics))
			}
		}
		real, metered := heap()-before, s.Stats().Bytes
		if ratio := float64(real) / float64(metered); ratio > 1.25 || ratio < 0.6 {
			t.Errorf("%+v: the heap has %d bytes, %d are metered (%.2f)", c, real, metered, ratio)
		}
		runtime.KeepAlive(s)
	}
}
