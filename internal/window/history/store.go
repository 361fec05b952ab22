// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Config is the limits of a Store. Zero values take the defaults.
type Config struct {
	MaxBytes  int64         // memory of all workloads; 64 MiB by default
	Retention time.Duration // Retention by default
}

// DefaultMaxBytes is the default memory limit.
const DefaultMaxBytes = 64 << 20

// The errors of Append, which then stores nothing.
var (
	// ErrOrder: the minute is not newer than the workload's last one.
	ErrOrder = errors.New("the minute is not newer than the last one")
	// ErrTime: the minute is not within the retention.
	ErrTime = errors.New("the minute is not within the retention")
)

// Store keeps the minutes of all workloads. Its methods are safe for concurrent use.
type Store struct {
	cfg Config

	mu         sync.RWMutex
	namespaces map[string]*namespace
	bytes      int64
	newest     int64 // the newest minute of all
	stats      Stats
	row        []triple // reused
}

// namespace is the part of the store that one namespace has.
type namespace struct {
	workloads map[Workload]*entry
	bytes     int64
	evicted   uint64 // rows that were dropped because of the memory limit
}

// entry is the minutes of a workload.
type entry struct {
	metrics []Metric
	index   map[Metric]int
	sealed  []chunk // oldest first
	head    chunkWriter
	size    int64 // as last metered
	settled int64 // of size: names and sealed chunks; 0: to be computed
	dropped int64 // the minute of the last dropUnused; 0: never
}

// entryOverhead is the memory of a workload without rows: the structures, and the slots
// of the maps.
const entryOverhead = 640

// metricOverhead is the memory of a metric beside its name: two headers of strings, and
// a slot of a map.
const metricOverhead = 64

// New returns an empty store.
func New(cfg Config) *Store {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, DefaultMaxBytes)
	cfg.Retention = cmp.Or(cfg.Retention, Retention)
	return &Store{cfg: cfg, namespaces: map[string]*namespace{}}
}

// Append adds a row to a workload. Values without a mean are left out, and so are those
// with a bad name and those beyond MaxMetrics, which are counted. A row without any value
// is not stored: the minute is missing.
func (s *Store) Append(w Workload, at time.Time, values []Value) error {
	if err := w.check(); err != nil {
		return err
	}
	minute := minuteOf(at)
	s.mu.Lock()
	defer s.mu.Unlock()
	if minute < 0 || minute > maxMinute || minute <= s.newest-s.minutes() {
		return fmt.Errorf("%s at %s: %w", w, at.UTC().Format(time.RFC3339), ErrTime)
	}
	n, e := s.entry(w)
	if _, last, ok := e.span(); ok && minute <= last {
		return fmt.Errorf("%s at %s: %w", w, at.UTC().Format(time.RFC3339), ErrOrder)
	}
	if row := s.rowOf(e, minute, values); row != nil {
		e.append(minute, row)
		s.stats.Rows++
		s.newest = max(s.newest, minute)
	}
	s.meter(n, w, e)
	s.evict()
	return nil
}

// Prepend adds rows, oldest first, before the first row of a workload. Rows that are not
// older than that one, not within the retention at now or without a value are left out. It
// reports whether there was room: unlike Append, it drops nothing to make room.
func (s *Store) Prepend(w Workload, rows []Row, now time.Time) (room bool, err error) {
	if err := w.check(); err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n, e := s.entry(w)
	defer func() { s.meter(n, w, e) }()
	before, _, has := e.span()
	if !has {
		before = maxMinute
	}
	older := entry{}
	last := max(minuteOf(now)-s.minutes(), -1)
	for i := range rows {
		minute := minuteOf(rows[i].At)
		if minute <= last || minute >= before {
			continue
		}
		if row := s.rowOf(e, minute, rows[i].Values); row != nil {
			older.append(minute, row)
			s.stats.Rows++
			last = minute
		}
	}
	older.seal()
	size := int64(0)
	for i := range older.sealed {
		size += older.sealed[i].bytes()
	}
	if s.bytes+size > s.cfg.MaxBytes {
		return false, nil
	}
	s.newest = max(s.newest, last)
	e.sealed, e.settled = append(older.sealed, e.sealed...), 0
	return true, nil
}

// minutes returns the retention in minutes.
func (s *Store) minutes() int64 { return int64(s.cfg.Retention / time.Minute) }

// entry returns the entry of a workload, which is made if it is missing.
func (s *Store) entry(w Workload) (*namespace, *entry) {
	n := s.namespaces[w.Namespace]
	if n == nil {
		n = &namespace{workloads: map[Workload]*entry{}}
		s.namespaces[w.Namespace] = n
	}
	e := n.workloads[w]
	if e == nil {
		e = &entry{index: map[Metric]int{}}
		n.workloads[w] = e
	}
	return n, e
}

// rowOf returns the stored form of values; nil if there is none. The row is reused.
func (s *Store) rowOf(e *entry, minute int64, values []Value) []triple {
	for i := range values {
		if narrow(values[i].Mean) != missing && !e.add(values[i].Metric, minute) {
			s.stats.RefusedMetrics++
		}
	}
	row, found := s.row[:0], false
	for range e.metrics {
		row = append(row, absent)
	}
	s.row = row
	for i := range values {
		v := &values[i]
		at, ok := e.index[v.Metric]
		if mean := narrow(v.Mean); ok && mean != missing {
			row[at], found = triple{mean, narrow(v.Max), narrow(v.Count)}, true
		}
	}
	if !found {
		return nil
	}
	return row
}

// add adds a metric to the list, if it is missing and there is room.
func (e *entry) add(m Metric, minute int64) bool {
	if _, ok := e.index[m]; ok {
		return true
	}
	if !m.valid() || len(e.metrics) >= MaxMetrics && !e.dropUnused(minute) {
		return false
	}
	e.setMetrics(append(e.metrics, m))
	return true
}

func (e *entry) setMetrics(metrics []Metric) {
	e.metrics, e.settled = metrics, 0
	if len(e.index) > len(metrics) {
		e.index = map[Metric]int{}
	}
	for i, m := range metrics {
		e.index[m] = i
	}
}

// dropInterval is the shortest time between two calls of dropUnused with an effect.
const dropInterval = 12 * 60 // minutes

// dropUnused removes the metrics without a value in any row, and reports whether there
// were any. It decodes all rows, and so does nothing within dropInterval of the last time.
func (e *entry) dropUnused(minute int64) bool {
	if e.dropped != 0 && minute < e.dropped+dropInterval {
		return false
	}
	e.dropped = minute
	var used [MaxMetrics]bool
	e.each(func(_ int64, columns []column) bool {
		for i := range columns {
			used[i] = used[i] || columns[i].last != absent
		}
		return true
	})
	fresh := &entry{index: map[Metric]int{}, size: e.size, dropped: minute}
	var kept []int
	for i, m := range e.metrics {
		if used[i] {
			kept, fresh.metrics = append(kept, i), append(fresh.metrics, m)
		}
	}
	if len(kept) == len(e.metrics) {
		return false
	}
	fresh.setMetrics(fresh.metrics)
	row := make([]triple, len(kept))
	e.each(func(minute int64, columns []column) bool {
		for i, from := range kept {
			row[i] = absent
			if from < len(columns) {
				row[i] = columns[from].last
			}
		}
		fresh.append(minute, row)
		return true
	})
	*e = *fresh
	return true
}

// each calls f for each row, oldest first, until f returns false.
func (e *entry) each(f func(minute int64, columns []column) bool) {
	var s rowState
	for i := range e.sealed {
		if !e.sealed[i].each(&s, f) {
			return
		}
	}
	e.head.each(&s, f)
}

// append adds a row to the newest chunk, or to a new one.
func (e *entry) append(minute int64, row []triple) {
	if !e.head.fits(minute, len(row)) {
		e.seal()
		e.head.begin(minute, len(row))
	}
	e.head.append(minute, row)
}

// seal ends the newest chunk.
func (e *entry) seal() {
	if e.head.rows > 0 {
		e.sealed = append(e.sealed, e.head.sealed())
		e.head.rows, e.settled = 0, 0
	}
}

// meter updates the bytes of an entry, its namespace and the store. An entry without rows
// is removed.
func (s *Store) meter(n *namespace, w Workload, e *entry) {
	size := e.bytes(w)
	if e.head.rows == 0 && len(e.sealed) == 0 {
		size = 0
		delete(n.workloads, w)
		if len(n.workloads) == 0 {
			delete(s.namespaces, w.Namespace)
		}
	}
	n.bytes += size - e.size
	s.bytes += size - e.size
	e.size = size
}

// bytes returns the memory of an entry.
func (e *entry) bytes(w Workload) int64 {
	if e.settled == 0 {
		e.settled = entryOverhead + int64(len(w.Namespace)+len(w.Kind)+len(w.Name)) + chunkOverhead*int64(cap(e.sealed)-len(e.sealed))
		for _, m := range e.metrics {
			e.settled += metricOverhead + int64(len(m))
		}
		for i := range e.sealed {
			e.settled += e.sealed[i].bytes()
		}
	}
	return e.settled + e.head.bytes()
}
