// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// Recorder adds up the readings of workloads, and records each minute in a store and on a
// volume. Add is safe for concurrent use.
type Recorder struct {
	store   *Store
	volume  *Volume // nil: none
	log     *slog.Logger
	failing bool // the last write failed, which was logged
	cleaned time.Time

	mu   sync.Mutex
	open map[Workload]*accumulator
}

// NewRecorder returns a recorder. volume may be nil.
func NewRecorder(s *Store, v *Volume, log *slog.Logger) *Recorder {
	return &Recorder{store: s, volume: v, log: log, open: map[Workload]*accumulator{}}
}

// Add adds readings of a workload at a time to their minute. They are not retained.
func (r *Recorder) Add(at time.Time, w Workload, readings []Value) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.open[w]
	if a == nil {
		a = &accumulator{}
		r.open[w] = a
	}
	a.add(at, readings)
}

// recordInterval is the time between two looks at the clock. A minute is recorded at most
// that long after its end.
const recordInterval = 15 * time.Second

// Run records each minute after its end, until ctx is done. Minutes before Run are not
// recorded: a volume must have been read, because rows are stored in their order.
func (r *Recorder) Run(ctx context.Context) {
	tick := time.NewTicker(recordInterval)
	defer tick.Stop()
	minute := time.Now().Truncate(time.Minute)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if begun := time.Now().Truncate(time.Minute); begun.After(minute) {
			r.record(minute)
			minute = begun
		}
	}
}

// row is the values of a workload in a minute.
type row struct {
	workload Workload
	values   []Value
}

// take returns the rows of the minute that begins at at. Workloads without readings are
// forgotten.
func (r *Recorder) take(at time.Time) (rows []row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w, a := range r.open {
		if values := a.take(at); len(values) > 0 {
			rows = append(rows, row{w, values})
		} else if len(a.metrics) == 0 { // nor of the next minute
			delete(r.open, w)
		}
	}
	return rows
}

// cleanInterval is the time between two calls of Volume.Clean.
const cleanInterval = 10 * time.Minute

// record records the minute that begins at at.
func (r *Recorder) record(at time.Time) {
	late, added := 0, r.take(at)
	added = slices.DeleteFunc(added, func(x row) bool {
		err := r.store.Append(x.workload, at, x.values)
		if errors.Is(err, ErrOrder) {
			late++
		}
		return err != nil
	})
	if late > 0 {
		r.log.Debug("rows of the history are not newer than earlier ones: the clock was set back", "workloads", late, "minute", at)
	}
	if r.volume != nil {
		r.logWrite(r.volume.Write(at, func(add addRow) {
			for _, x := range added {
				add(x.workload, x.values)
			}
		}))
	}
	r.store.Expire(at)
	r.clean(at)
}

// logWrite logs the first failure of a series, and its end.
func (r *Recorder) logWrite(err error) {
	switch {
	case err != nil && !r.failing:
		r.log.Error("the history is kept in memory only until a write succeeds", "err", err)
	case err == nil && r.failing:
		r.log.Info("the history is written again", "dir", r.volume.Dir())
	}
	r.failing = err != nil
}

// clean cleans the volume every cleanInterval.
func (r *Recorder) clean(now time.Time) {
	if r.volume == nil || now.Sub(r.cleaned) < cleanInterval {
		return
	}
	r.cleaned = now
	if err := r.volume.Clean(r.store, now); err != nil {
		r.log.Warn("old segments of the history cannot be replaced; the oldest are removed", "err", err)
	}
}
