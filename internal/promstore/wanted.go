// SPDX-License-Identifier: Apache-2.0

package promstore

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// useTTL is how long a metric is kept after the last query for it.
const useTTL = 10 * time.Minute

// maxWanted is the limit of names that queries want. Names beyond it are not kept, so
// that a query of many names cannot fill the windows.
const maxWanted = 2000

// wanted are the names of the metrics in use.
type wanted struct {
	added chan struct{} // has a value after a new name

	mu      sync.Mutex
	last    map[string]time.Time // the last use, by name
	held    map[string][]string  // by holder
	all     bool
	shortAt int // the targets at which the memory was last short; 0: it is not. Only Run uses it
	refused uint64
	changed bool
}

func (w *wanted) init() {
	w.added = make(chan struct{}, 1)
	w.last, w.held, w.changed = map[string]time.Time{}, map[string][]string{}, true
}

// Want has the series of these metrics kept with their labels, until 10 minutes after
// the last call. Queries do so for the names that they select.
func (s *Store) Want(names ...string) { s.wanted.want(s.now(), names...) }

// Hold has the series of these metrics kept until the holder, such as a file of rules,
// holds other ones.
func (s *Store) Hold(holder string, names []string) {
	w := &s.wanted
	w.mu.Lock()
	if len(names) == 0 {
		delete(w.held, holder)
	} else {
		w.held[holder] = slices.Clone(names)
	}
	w.changed = true
	w.mu.Unlock()
	w.notify()
}

func (w *wanted) notify() {
	select {
	case w.added <- struct{}{}:
	default:
	}
}

func (w *wanted) want(now time.Time, names ...string) {
	isNew := false
	w.mu.Lock()
	for _, name := range names {
		if _, ok := w.last[name]; !ok {
			if name == "" {
				continue
			}
			if len(w.last) >= maxWanted {
				w.refused++
				continue
			}
			isNew = true
		}
		w.last[name] = now
	}
	w.changed = w.changed || isNew
	w.mu.Unlock()
	if isNew {
		w.notify()
	}
}

func (w *wanted) expire(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.last, func(_ string, at time.Time) bool {
		old := now.Sub(at) > useTTL
		w.changed = w.changed || old
		return old
	})
}

func (w *wanted) setAll(all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = w.changed || w.all != all
	w.all = all
}

// take returns the names, sorted, and whether they have changed since the last call.
func (w *wanted) take() (all bool, names []string, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.changed {
		return w.all, nil, false
	}
	w.changed = false
	names = slices.Collect(maps.Keys(w.last))
	for _, held := range w.held {
		names = append(names, held...)
	}
	slices.Sort(names)
	return w.all, slices.Compact(names), true
}

func (w *wanted) has(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.last[name]; ok {
		return true
	}
	for _, held := range w.held {
		if slices.Contains(held, name) {
			return true
		}
	}
	return false
}

func (w *wanted) hasPrefix(prefix string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	is := func(name string) bool { return strings.HasPrefix(name, prefix) }
	for name := range w.last {
		if is(name) {
			return true
		}
	}
	for _, held := range w.held {
		if slices.ContainsFunc(held, is) {
			return true
		}
	}
	return false
}

// count returns the number of names that queries and holders want, and of the refused
// requests.
func (w *wanted) count() (names int, refused uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := maps.Clone(w.last)
	for _, held := range w.held {
		for _, name := range held {
			all[name] = time.Time{}
		}
	}
	return len(all), w.refused
}

func (w *wanted) keepsAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}
