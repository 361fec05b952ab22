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

// BackfillConfig says what Backfill reads. Zero values take the defaults.
type BackfillConfig struct {
	Families []Family
	// Query evaluates PromQL each minute of a range, both ends included. An error that
	// wraps ErrTooLong is answered with a shorter range.
	Query func(ctx context.Context, promql string, from, to time.Time) ([]Recorded, error)
	Pause time.Duration // between two queries; 200 ms
	Slice time.Duration // the longest range of a query; 6 h
	// MaxQueries bounds the number of queries, and so the time; 5,000.
	MaxQueries int
	Store      *Store

	maxCells int
}

// ErrTooLong is an answer that is larger than the limit.
var ErrTooLong = errors.New("the answer is too long")

// The ranges of queries.
const (
	defaultSlice   = 6 * time.Hour
	minSlice       = 5 * time.Minute
	defaultPause   = 200 * time.Millisecond
	defaultQueries = 5000
)

// defaultCells bounds the values of a slice that are put together, 32 MiB. The answers
// alone do not: a series with one point takes room for all minutes.
const defaultCells = 4 << 20

// The reasons to end before the retention.
var (
	errFull    = errors.New("the memory limit is reached")
	errQueries = errors.New("the limit of queries is reached")
)

// Backfill adds what a backend has recorded before now, the newest first, until the
// retention, the store's memory limit or the limit of queries is reached. It sends one
// query at a time. It returns the oldest minute that it has read.
func Backfill(ctx context.Context, cfg BackfillConfig, now time.Time) (oldest time.Time, err error) {
	cfg.Pause, cfg.Slice = cmp.Or(cfg.Pause, defaultPause), cmp.Or(cfg.Slice, defaultSlice)
	cfg.MaxQueries = cmp.Or(cfg.MaxQueries, defaultQueries)
	cfg.maxCells = cmp.Or(cfg.maxCells, defaultCells)
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
		case errors.Is(err, errFull), errors.Is(err, errQueries):
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
	rows := sliceRows{
		first: minuteOf(from), minutes: int(to.Sub(from) / time.Minute), most: cfg.maxCells,
		workloads: map[Workload]map[Metric]*cells{}, metrics: map[Metric]Metric{}, over: cfg.over(),
	}
	for _, b := range batches(cfg.Families) {
		for cell, promql := range b.queries() {
			if promql == "" {
				continue
			}
			if cfg.MaxQueries--; cfg.MaxQueries < 0 {
				return errQueries
			}
			// The aggregate over a minute is recorded at its end.
			found, err := cfg.Query(ctx, promql, from.Add(time.Minute), to)
			if err != nil {
				return err
			}
			if err := rows.add(b, found, cell); err != nil {
				return err
			}
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

// over returns Family.Over by the name of the family.
func (cfg *BackfillConfig) over() map[string]string {
	out := map[string]string{}
	for i := range cfg.Families {
		if f := &cfg.Families[i]; f.Over != "" {
			out[f.Name] = f.Over
		}
	}
	return out
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
	metrics   map[Metric]Metric // so that workloads share the texts
	over      map[string]string // the family with the numbers of GPUs, by that of a metric
	used      int               // values of all cells
	most      int               // of used
}

// cells are the aggregates of a metric in each minute of a slice. Those without a series
// are empty.
type cells [3][]float64

// The indexes of cells.
const (
	cellMean = iota
	cellMax
	cellSum
)

// add sets one aggregate of families. It returns ErrTooLong if there are too many series.
func (r *sliceRows) add(b batch, found []Recorded, cell int) error {
	for i := range found {
		w, m, ok := b.identify(found[i].Labels)
		if !ok {
			continue
		}
		values := r.cells(w, shared(r.metrics, m), cell)
		if r.used > r.most {
			return fmt.Errorf("%w: %d values of %d workloads", ErrTooLong, r.used, len(r.workloads))
		}
		for _, p := range found[i].Points {
			if at := minuteOf(p.At) - 1 - r.first; at >= 0 && at < int64(len(values)) {
				values[at] = p.Value
			}
		}
	}
	return nil
}

// cells returns an aggregate of a metric, which is made if it is missing.
func (r *sliceRows) cells(w Workload, m Metric, cell int) []float64 {
	if r.workloads[w] == nil {
		r.workloads[w] = map[Metric]*cells{}
	}
	c := r.workloads[w][m]
	if c == nil {
		c = &cells{}
		r.workloads[w][m] = c
	}
	if c[cell] == nil {
		c[cell] = make([]float64, r.minutes)
		r.used += r.minutes
		for i := range c[cell] {
			c[cell][i] = math.NaN()
		}
	}
	return c[cell]
}

// at returns an aggregate in a minute of the slice; NaN: there is none.
func (c *cells) at(cell, minute int) float64 {
	if c == nil || c[cell] == nil {
		return math.NaN()
	}
	return c[cell][minute]
}

// rows returns the rows of a workload, oldest first. Metrics are in the order of their
// names, so that equal histories are stored equally.
func (r *sliceRows) rows(w Workload) []Row {
	of := r.workloads[w]
	metrics := slices.Sorted(maps.Keys(of))
	var out []Row
	for i := range r.minutes {
		row := Row{At: timeOf(r.first + int64(i))}
		for _, m := range metrics {
			c := of[m]
			if mean := c.at(cellMean, i); !math.IsNaN(mean) {
				row.Values = append(row.Values, Value{Metric: m, Mean: mean, Max: c.at(cellMax, i), Count: r.countOf(of, m, i)})
			}
		}
		if len(row.Values) > 0 {
			out = append(out, row)
		}
	}
	return out
}

// countOf returns the number of GPUs with a value of a metric in a minute: the sum by the
// mean or, if they are zero, the GPUs of the workload.
func (r *sliceRows) countOf(of map[Metric]*cells, m Metric, minute int) float64 {
	sum, mean := of[m].at(cellSum, minute), of[m].at(cellMean, minute)
	if math.IsNaN(sum) || mean != 0 {
		return sum / mean // NaN without a sum
	}
	name := m.Name()
	return of[Metric(r.over[name])+m[len(name):]].at(cellMean, minute)
}
