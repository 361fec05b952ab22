// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// Point is a value at the end of a minute.
type Point struct {
	At    time.Time
	Value float64
}

// Recorded is a series that a backend has recorded.
type Recorded struct {
	Labels map[string]string
	Points []Point // oldest first
}

// Family is a metric of many workloads, as a backend has recorded it.
type Family struct {
	// Mean and Max are PromQL queries for the aggregates over the minute before each
	// moment. Max may be empty.
	Mean, Max string
	// Identify returns what a series is about; ok is false if that is unknown.
	Identify func(labels map[string]string) (w Workload, m Metric, ok bool)
}

// BackfillConfig says what Backfill reads. Zero values take the defaults.
type BackfillConfig struct {
	Families []Family
	// Query evaluates PromQL each minute of a range, both ends included. An error that
	// wraps ErrTooLong is answered with a shorter range.
	Query func(ctx context.Context, promql string, from, to time.Time) ([]Recorded, error)
	Pause time.Duration // between two queries; 200 ms
	Slice time.Duration // the longest range of a query; 6 h
	Store *Store
}

// ErrTooLong is an answer that is larger than the limit.
var ErrTooLong = errors.New("the answer is too long")

// The ranges of queries.
const (
	defaultSlice = 6 * time.Hour
	minSlice     = 15 * time.Minute
	defaultPause = 200 * time.Millisecond
)

// errFull: the store has no room for older rows.
var errFull = errors.New("the memory limit is reached")

// Backfill adds what a backend has recorded before now, the newest first, until the
// retention or the store's memory limit is reached. It sends one query at a time. It
// returns the oldest minute that it has read.
func Backfill(ctx context.Context, cfg BackfillConfig, now time.Time) (oldest time.Time, err error) {
	cfg.Pause, cfg.Slice = cmp.Or(cfg.Pause, defaultPause), cmp.Or(cfg.Slice, defaultSlice)
	end := now.Truncate(time.Minute)
	begin := end.Add(-cfg.Store.cfg.Retention + time.Minute)
	for end.After(begin) {
		from := end.Add(-cfg.Slice)
		if from.Before(begin) {
			from = begin
		}
		err := cfg.slice(ctx, from, end, now)
		switch {
		case errors.Is(err, ErrTooLong) && cfg.Slice > minSlice:
			cfg.Slice = max((cfg.Slice / 4).Truncate(time.Minute), minSlice)
			continue
		case errors.Is(err, errFull):
			return end, nil
		case err != nil:
			return end, fmt.Errorf("read the history from %s to %s: %w", from.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339), err)
		}
		end = from
	}
	return end, nil
}

// slice adds the rows of the minutes from one time until another.
func (cfg *BackfillConfig) slice(ctx context.Context, from, to, now time.Time) error {
	rows := workloadRows{}
	for i := range cfg.Families {
		f := &cfg.Families[i]
		for _, q := range []struct {
			promql string
			set    func(v *Value, x float64)
		}{{f.Mean, func(v *Value, x float64) { v.Mean = x }}, {f.Max, func(v *Value, x float64) { v.Max = x }}} {
			if q.promql == "" {
				continue
			}
			// The aggregate over a minute is recorded at its end.
			found, err := cfg.Query(ctx, q.promql, from.Add(time.Minute), to)
			if err != nil {
				return err
			}
			rows.add(f, found, q.set)
			if err := pause(ctx, cfg.Pause); err != nil {
				return err
			}
		}
	}
	for w, minutes := range rows {
		room, err := cfg.Store.Prepend(w, minutes.sorted(), now)
		if err == nil && !room {
			return errFull
		}
	}
	return nil
}

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// workloadRows are the rows of workloads that are being put together from several series.
type workloadRows map[Workload]minuteRows

// minuteRows are the rows of a workload by minute.
type minuteRows map[int64]map[Metric]*Value

// add sets a part of the values of a family.
func (r workloadRows) add(f *Family, found []Recorded, set func(v *Value, x float64)) {
	for i := range found {
		w, m, ok := f.Identify(found[i].Labels)
		if !ok || w.check() != nil || !m.valid() {
			continue
		}
		if r[w] == nil {
			r[w] = minuteRows{}
		}
		for _, p := range found[i].Points {
			minute := minuteOf(p.At) - 1
			if r[w][minute] == nil {
				r[w][minute] = map[Metric]*Value{}
			}
			v := r[w][minute][m]
			if v == nil {
				v = &Value{Metric: m, Mean: math.NaN(), Max: math.NaN(), Count: math.NaN()}
				r[w][minute][m] = v
			}
			set(v, p.Value)
		}
	}
}

// sorted returns the rows, oldest first. Metrics are in the order of their names, so that
// equal histories are stored equally.
func (r minuteRows) sorted() []Row {
	out := make([]Row, 0, len(r))
	for minute, values := range r {
		row := Row{At: timeOf(minute), Values: make([]Value, 0, len(values))}
		for _, v := range values {
			row.Values = append(row.Values, *v)
		}
		slices.SortFunc(row.Values, func(a, b Value) int { return cmp.Compare(a.Metric, b.Metric) })
		out = append(out, row)
	}
	slices.SortFunc(out, func(a, b Row) int { return a.At.Compare(b.At) })
	return out
}
