// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// backend answers queries for one workload whose signal is the number of the minute.
type backend struct {
	queries []string // QUERY minutes from..to
	most    time.Duration
	missing int // a minute without a value
}

func (b *backend) query(_ context.Context, promql string, from, to time.Time) ([]Recorded, error) {
	b.queries = append(b.queries, promql)
	if b.most > 0 && to.Sub(from) > b.most {
		return nil, fmt.Errorf("backend: %w", ErrTooLong)
	}
	r := Recorded{Labels: map[string]string{"namespace": "ml", "name": "chat"}}
	for t := from; !t.After(to); t = t.Add(time.Minute) {
		// The value at the end of a minute is that of the minute.
		minute := int(t.Sub(epoch)/time.Minute) - 1
		value := float64(minute)
		if promql == "max" {
			value++
		}
		if minute != b.missing {
			r.Points = append(r.Points, Point{t, value})
		}
	}
	return []Recorded{r, {Labels: map[string]string{"other": "series"}, Points: r.Points}}, nil
}

func backfill(b *backend, s *Store) BackfillConfig {
	return BackfillConfig{Query: b.query, Store: s, Pause: time.Nanosecond, Families: []Family{{
		Mean: "mean", Max: "max",
		Identify: func(l map[string]string) (Workload, Metric, bool) {
			return Workload{l["namespace"], "GPUAutoscaler", l["name"]}, "signal/gpu", l["namespace"] != ""
		},
	}}}
}

func TestBackfillReadsTheMinutesBefore(t *testing.T) {
	s, b := New(Config{Retention: 24 * time.Hour}), &backend{missing: 700}
	w := workload("ml", "chat")
	mustAppend(t, s, w, 1000, one(1000)) // was recorded meanwhile
	oldest, err := Backfill(t.Context(), backfill(b, s), at(1000).Add(20*time.Second))
	if err != nil || oldest != at(1000-24*60+1) {
		t.Fatalf("read back to %v, %v", oldest, err)
	}
	got := rows(s, w)
	if len(got) != 24*60-1 || !slices.Contains(got, "701 signal/gpu=701/702/NaN") || got[len(got)-1] != "1000 signal/gpu=1000/1000/NaN" {
		t.Errorf("%d rows: %s … %s", len(got), got[0], got[len(got)-2:])
	}
	for _, row := range got {
		if row[:4] == "700 " {
			t.Errorf("the missing minute is %q", row)
		}
	}
	if len(b.queries) != 2*4 {
		t.Errorf("%d queries, want 2 for each 6 h", len(b.queries))
	}
}

func TestBackfillAsksForLessAfterALongAnswer(t *testing.T) {
	s, b := New(Config{Retention: 24 * time.Hour}), &backend{most: time.Hour, missing: math.MinInt}
	if _, err := Backfill(t.Context(), backfill(b, s), at(1000)); err != nil {
		t.Fatal(err)
	}
	if got := rows(s, workload("ml", "chat")); len(got) != 24*60-1 {
		t.Errorf("%d rows", len(got))
	}
	b.most = time.Minute // even the shortest range is too long
	if _, err := Backfill(t.Context(), backfill(b, New(Config{})), at(1000)); !errors.Is(err, ErrTooLong) {
		t.Errorf("error %v, want ErrTooLong", err)
	}
}

func TestBackfillEndsAtTheMemoryLimit(t *testing.T) {
	s, b := New(Config{MaxBytes: 16 << 10}), &backend{missing: math.MinInt}
	oldest, err := Backfill(t.Context(), backfill(b, s), at(0))
	st := s.Stats()
	if err != nil || st.Bytes > st.Limit || st.EvictedRows != 0 || at(0).Sub(oldest) > 13*24*time.Hour || len(rows(s, workload("ml", "chat"))) == 0 {
		t.Errorf("read back to %v with %+v, %v", oldest, st, err)
	}
}

// The number of GPUs follows from the sum. Idle GPUs have the sum zero.
func TestBackfillCountsTheGPUs(t *testing.T) {
	w := workload("ml", "chat")
	answers := map[string]map[Metric]float64{
		"mean":  {"gpu/POWER": 200, "gpu/UTIL": 0, "active/UTIL": 0, "signal/a": 3},
		"max":   {"gpu/POWER": 300, "gpu/UTIL": 0},
		"sum":   {"gpu/POWER": 800, "gpu/UTIL": 0, "active/UTIL": 0},
		"count": {"gpus/allocated": 4, "gpus/active": 1},
	}
	family := Family{Mean: "mean", Max: "max", Sum: "sum", Identify: func(l map[string]string) (Workload, Metric, bool) { return w, Metric(l["metric"]), true }}
	gpus := family
	gpus.Mean, gpus.Max, gpus.Sum = "count", "", ""
	s := New(Config{Retention: 10 * time.Minute})
	_, err := Backfill(t.Context(), BackfillConfig{
		Store: s, Pause: time.Nanosecond, Families: []Family{family, gpus},
		Query: func(_ context.Context, promql string, _, to time.Time) (out []Recorded, _ error) {
			for m, v := range answers[promql] {
				out = append(out, Recorded{Labels: map[string]string{"metric": string(m)}, Points: []Point{{to, v}}})
			}
			return out, nil
		},
	}, at(100))
	if want := "99 active/UTIL=0/NaN/1 gpu/POWER=200/300/4 gpu/UTIL=0/0/4 gpus/active=1/NaN/NaN gpus/allocated=4/NaN/NaN signal/a=3/NaN/NaN"; err != nil || fmt.Sprint(rows(s, w)) != "["+want+"]" {
		t.Errorf("%v, %v; want %s", rows(s, w), err, want)
	}
}

func TestBackfillEndsAtTheLimitOfQueries(t *testing.T) {
	s, b := New(Config{}), &backend{missing: math.MinInt}
	cfg := backfill(b, s)
	cfg.MaxQueries = 5
	oldest, err := Backfill(t.Context(), cfg, at(20000))
	if err != nil || len(b.queries) != 5 || at(20000).Sub(oldest) != 12*time.Hour {
		t.Errorf("read back to %v with %d queries, %v", oldest, len(b.queries), err)
	}
}

// Series with one point each are short answers that need much memory.
func TestBackfillBoundsItsMemory(t *testing.T) {
	longest := time.Duration(0)
	_, err := Backfill(t.Context(), BackfillConfig{
		Store: New(Config{Retention: 12 * time.Hour}), Pause: time.Nanosecond, maxCells: 36_000,
		Families: []Family{{Mean: "mean", Identify: func(l map[string]string) (Workload, Metric, bool) {
			return Workload{"ml", "Deployment", l["name"]}, "gpus/allocated", true
		}}},
		Query: func(_ context.Context, _ string, from, to time.Time) (out []Recorded, _ error) {
			for i := range 200 {
				out = append(out, Recorded{Labels: map[string]string{"name": fmt.Sprint(i)}, Points: []Point{{to, 1}}})
			}
			longest = to.Sub(from)
			return out, nil
		},
	}, at(20000))
	if err != nil || longest > 90*time.Minute {
		t.Errorf("the last range is %s, %v", longest, err)
	}
}

func TestBackfillEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Backfill(ctx, backfill(&backend{}, New(Config{})), at(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
