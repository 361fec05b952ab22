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

func TestBackfillEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Backfill(ctx, backfill(&backend{}, New(Config{})), at(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
