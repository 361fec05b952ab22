// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// useTTL is how long a metric is kept after the last query for it.
const useTTL = 10 * time.Minute

// The limits of names that queries want: of one payer, and of all. Names beyond them are
// not kept, so that queries of many names can neither fill the windows nor have the
// series of others left out.
const (
	maxWantedEach = 500
	maxWanted     = 10_000
)

// use is a name in use.
type use struct {
	last  time.Time
	payer string // in whose share it counts: who wanted it first
}

// wanted are the names of the metrics in use.
type wanted struct {
	added chan struct{} // has a value after a new name

	mu      sync.Mutex
	last    map[string]use      // by name
	shares  map[string]int      // names in last, by payer
	held    map[string][]string // by holder
	all     bool
	shortAt int // the targets at which the memory was last short; 0: it is not. Only Run uses it
	refused uint64
	changed bool
}

func (w *wanted) init() {
	w.added = make(chan struct{}, 1)
	w.last, w.shares, w.held, w.changed = map[string]use{}, map[string]int{}, map[string][]string{}, true
}

// Want has the series of these metrics kept with their labels, until 10 minutes after
// the last call. Queries do so for the names that they select.
func (s *Store) Want(names ...string) { s.WantFor("", names...) }

// WantFor is Want for a payer, such as a namespace, which has a share of the names.
func (s *Store) WantFor(payer string, names ...string) { s.wanted.want(s.now(), payer, names...) }

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

func (w *wanted) want(now time.Time, payer string, names ...string) {
	isNew := false
	w.mu.Lock()
	for _, name := range names {
		known, ok := w.last[name]
		if !ok {
			if name == "" {
				continue
			}
			if len(w.last) >= maxWanted || w.shares[payer] >= maxWantedEach {
				w.refused++
				continue
			}
			isNew = true
			w.shares[payer]++
			known.payer = payer
		}
		w.last[name] = use{last: now, payer: known.payer}
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
	for name, u := range w.last {
		if now.Sub(u.last) <= useTTL {
			continue
		}
		delete(w.last, name)
		if w.shares[u.payer]--; w.shares[u.payer] == 0 {
			delete(w.shares, u.payer)
		}
		w.changed = true
	}
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
			all[name] = use{}
		}
	}
	return len(all), w.refused
}

func (w *wanted) keepsAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}
