// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
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
	r := Recorded{Labels: map[string]string{familyLabel: "signal", "namespace": "ml", "name": "chat", "of": "gpu"}}
	for t := from; !t.After(to); t = t.Add(time.Minute) {
		// The value at the end of a minute is that of the minute.
		minute := int(t.Sub(epoch)/time.Minute) - 1
		value := float64(minute)
		if strings.Contains(promql, "max_over_time") {
			value++
		}
		if minute != b.missing {
			r.Points = append(r.Points, Point{t, value})
		}
	}
	return []Recorded{r, {Labels: map[string]string{"other": "series"}, Points: r.Points}}, nil
}

func backfill(b *backend, s *Store) BackfillConfig {
	return BackfillConfig{Query: b.query, Store: s, Pause: time.Nanosecond, Families: []Family{{Name: "signal", Labels: []Label{{Name: "of"}}}}}
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
	if len(got) != 24*60-1 || !slices.Contains(got, `701 signal{of="gpu"}=701/702/NaN`) || got[len(got)-1] != `1000 signal=1000/1000/NaN` {
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
	inUse := []Label{{Name: "in_use", Values: []string{"allocated", "active"}}}
	over := func(name string) Family { return Family{Name: name, Of: Workloads, Labels: inUse, Over: "gpus"} }
	answers := map[string]map[string]float64{ // by the beginning of the query: FAMILY IN_USE
		"avg avg":  {"power allocated": 200, "util allocated": 0, "util active": 0, "util other": 0},
		"max max":  {"power allocated": 300, "util allocated": 0},
		"avg sum":  {"power allocated": 800, "util allocated": 0, "util active": 0},
		"avg gpus": {"gpus allocated": 4, "gpus active": 1},
	}
	s := New(Config{Retention: 10 * time.Minute})
	_, err := Backfill(t.Context(), BackfillConfig{
		Store: s, Pause: time.Nanosecond, Families: []Family{over("power"), over("util"), {Name: "gpus", Of: Workloads, Labels: inUse}},
		Query: func(_ context.Context, promql string, _, to time.Time) (out []Recorded, _ error) {
			key, _, _ := strings.Cut(strings.TrimPrefix(promql, "label_replace("), " ")
			switch stat := regexp.MustCompile(`stat="(.*?)"`).FindStringSubmatch(promql); {
			case stat != nil:
				key += " " + stat[1]
			default:
				key += " gpus"
			}
			for m, v := range answers[key] {
				family, inUse, _ := strings.Cut(m, " ")
				out = append(out, Recorded{
					Labels: map[string]string{familyLabel: family, "in_use": inUse, "namespace": "ml", "kind": "Deployment", "name": "chat"},
					Points: []Point{{to, v}},
				})
			}
			return out, nil
		},
	}, at(100))
	want := `99 gpus{in_use="active"}=1/NaN/NaN gpus{in_use="allocated"}=4/NaN/NaN power{in_use="allocated"}=200/300/4 util{in_use="active"}=0/NaN/1 util{in_use="allocated"}=0/0/4`
	if got := rows(s, Workload{"ml", "Deployment", "chat"}); err != nil || fmt.Sprint(got) != "["+want+"]" {
		t.Errorf("%v, %v; want %s", got, err, want)
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
		Families: []Family{{Name: "gpus", Of: Workloads}},
		Query: func(_ context.Context, _ string, from, to time.Time) (out []Recorded, _ error) {
			for i := range 200 {
				out = append(out, Recorded{Labels: map[string]string{familyLabel: "gpus", "namespace": "ml", "kind": "Deployment", "name": fmt.Sprint(i)}, Points: []Point{{to, 1}}})
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

// Whoever writes series into the Prometheus chooses their labels.
func TestBackfillIdentifiesItsSeriesOnly(t *testing.T) {
	inUse := Label{Name: "in_use", Values: []string{"allocated", "active"}}
	families := []Family{
		{Name: "replicas", Labels: []Label{{Name: "state"}}},
		{Name: "signal", Labels: []Label{{Name: "signal"}, {Name: "unit", Optional: true}}},
		{Name: "gpus", Of: Workloads, Labels: []Label{inUse}},
		{Name: "util", Of: Namespaces, Labels: []Label{inUse}, Over: "namespace_gpus"},
		{Name: "power", Of: Namespaces, Labels: []Label{inUse}, Over: "namespace_gpus"},
	}
	all := batches(families)
	if len(all) != 4 {
		t.Fatalf("%d batches", len(all))
	}
	f := func(family, want string, pairs ...string) {
		t.Helper()
		l := map[string]string{"namespace": "ml", "name": "chat", familyLabel: family}
		for i := 0; i < len(pairs); i += 2 {
			l[pairs[i]] = pairs[i+1]
		}
		got := ""
		for _, b := range all {
			if w, m, ok := b.identify(l); ok {
				got += w.String() + " " + string(m)
			}
		}
		if got != want {
			t.Errorf("%s of %v is %q, want %q", family, l, got, want)
		}
	}
	f("replicas", `GPUAutoscaler ml/chat replicas{state="serving"}`, "state", "serving")
	f("replicas", `GPUAutoscaler ml/chat replicas{state="serving"}`, "state", "serving", "kind", "Deployment", "more", "x")
	f("replicas", "")
	f("other", "", "state", "serving")
	f("signal", `GPUAutoscaler ml/chat signal{signal="a",unit="%"}`, "signal", "a", "unit", "%")
	f("signal", `GPUAutoscaler ml/chat signal{signal="a"}`, "signal", "a")
	f("signal", "", "unit", "%")
	f("signal", "", "signal", strings.Repeat("x", MaxMetric))
	f("gpus", `Deployment ml/chat gpus{in_use="active"}`, "kind", "Deployment", "in_use", "active")
	f("gpus", "", "kind", "Deployment", "in_use", "other")
	f("gpus", "", "kind", "Deployment")
	f("gpus", "", "kind", "GPUAutoscaler", "in_use", "active")
	f("gpus", "", "kind", "Namespace", "in_use", "active")
	f("gpus", "", "in_use", "active")
	f("util", `Namespace ml/ml util{in_use="allocated"}`, "kind", "Deployment", "in_use", "allocated")
	f("power", "", "namespace", "", "in_use", "allocated")
}
