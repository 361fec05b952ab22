// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"log/slog"
	"time"
)

// Recorder adds the minutes of all workloads to a store, and to a volume.
type Recorder struct {
	store   *Store
	volume  *Volume // nil: none
	log     *slog.Logger
	failing bool // the last write failed, which was logged
	cleaned time.Time
}

// NewRecorder returns a recorder. volume may be nil.
func NewRecorder(s *Store, v *Volume, log *slog.Logger) *Recorder {
	return &Recorder{store: s, volume: v, log: log}
}

// cleanInterval is the time between two calls of Volume.Clean.
const cleanInterval = 10 * time.Minute

// Record adds the rows of the minute that begins at at, for which rows calls add. The
// values are not retained. Record is called once a minute, by one goroutine.
func (r *Recorder) Record(at time.Time, rows func(add func(w Workload, values []Value))) {
	late := 0
	appendRow := func(w Workload, values []Value) bool {
		err := r.store.Append(w, at, values)
		if errors.Is(err, ErrOrder) {
			late++
		}
		return err == nil
	}
	called := false
	if r.volume != nil {
		r.logWrite(r.volume.Write(at, func(add addRow) {
			called = true
			rows(func(w Workload, values []Value) {
				if appendRow(w, values) {
					add(w, values)
				}
			})
		}))
	}
	if !called { // no volume, or its segment cannot be made
		rows(func(w Workload, values []Value) { appendRow(w, values) })
	}
	if late > 0 {
		r.log.Debug("rows of the history are not newer than earlier ones: the clock was set back", "workloads", late, "minute", at)
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
