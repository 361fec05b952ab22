// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	minSlice     = 5 * time.Minute
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
	rows := sliceRows{first: minuteOf(from), minutes: int(to.Sub(from) / time.Minute), workloads: map[Workload]map[Metric]*cells{}}
	for i := range cfg.Families {
		f := &cfg.Families[i]
		for cell, promql := range []string{cellMean: f.Mean, cellMax: f.Max} {
			if promql == "" {
				continue
			}
			// The aggregate over a minute is recorded at its end.
			found, err := cfg.Query(ctx, promql, from.Add(time.Minute), to)
			if err != nil {
				return err
			}
			rows.add(f, found, cell)
			if err := pause(ctx, cfg.Pause); err != nil {
				return err
			}
		}
	}
	for w := range rows.workloads {
		room, err := cfg.Store.Prepend(w, rows.rows(w), now)
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

// sliceRows are the rows of a slice that are being put together from several series.
type sliceRows struct {
	first     int64 // minute
	minutes   int
	workloads map[Workload]map[Metric]*cells
}

// cells are the aggregates of a metric in each minute of a slice.
type cells [2][]float64

// The indexes of cells.
const (
	cellMean = iota
	cellMax
)

// add sets the means or the maxima of a family.
func (r *sliceRows) add(f *Family, found []Recorded, cell int) {
	for i := range found {
		w, m, ok := f.Identify(found[i].Labels)
		if !ok || w.check() != nil || !m.valid() {
			continue
		}
		values := r.cells(w, m)[cell]
		for _, p := range found[i].Points {
			if at := minuteOf(p.At) - 1 - r.first; at >= 0 && at < int64(len(values)) {
				values[at] = p.Value
			}
		}
	}
}

// cells returns the cells of a metric, which are made if they are missing.
func (r *sliceRows) cells(w Workload, m Metric) *cells {
	if r.workloads[w] == nil {
		r.workloads[w] = map[Metric]*cells{}
	}
	c := r.workloads[w][m]
	if c == nil {
		c = &cells{make([]float64, r.minutes), make([]float64, r.minutes)}
		for _, list := range c {
			for i := range list {
				list[i] = math.NaN()
			}
		}
		r.workloads[w][m] = c
	}
	return c
}

// rows returns the rows of a workload, oldest first. Metrics are in the order of their
// names, so that equal histories are stored equally.
func (r *sliceRows) rows(w Workload) []Row {
	metrics := slices.Sorted(maps.Keys(r.workloads[w]))
	var out []Row
	for i := range r.minutes {
		row := Row{At: timeOf(r.first + int64(i))}
		for _, m := range metrics {
			if c := r.workloads[w][m]; !math.IsNaN(c[cellMean][i]) {
				row.Values = append(row.Values, Value{Metric: m, Mean: c[cellMean][i], Max: c[cellMax][i], Count: math.NaN()})
			}
		}
		if len(row.Values) > 0 {
			out = append(out, row)
		}
	}
	return out
}
