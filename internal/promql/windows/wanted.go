// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/page"
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

// use is a payer's use of a name.
type use struct {
	last       time.Time
	namespaces []string // whose series it reads, sorted; nil: all
}

// share is what counts in a payer's share.
type share struct {
	names  int
	fields int // of names, those of GPUs that are not read of all namespaces
}

// wanted are the names of the metrics in use.
type wanted struct {
	added chan struct{} // has a value after a new name

	mu      sync.Mutex
	last    map[string]map[fair.Payer]use // by name and payer
	total   int                           // uses in last
	shares  map[fair.Payer]share          // by payer
	held    map[string][]string           // by holder
	all     bool
	shortAt int // the targets at which the memory was last short; 0: it is not. Only Run uses it
	refused uint64
	changed bool
}

func (w *wanted) init() {
	w.added = make(chan struct{}, 1)
	w.last, w.shares, w.held, w.changed = map[string]map[fair.Payer]use{}, map[fair.Payer]share{}, map[string][]string{}, true
}

// Want has the series of these metrics kept with their labels, until 10 minutes after
// the last call. Queries do so for the names that they select.
func (s *Store) Want(names ...string) { s.WantFor(fair.Payer{}, nil, names...) }

// WantFor is Want for a payer, such as a namespace, which has a share of the names. The series of these namespaces,
// which are sorted, are kept; nil: all. WantFor retains the slice.
func (s *Store) WantFor(payer fair.Payer, namespaces []string, names ...string) {
	s.wanted.want(s.now(), payer, namespaces, names...)
}

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

func (w *wanted) want(now time.Time, payer fair.Payer, namespaces []string, names ...string) {
	isNew := false
	w.mu.Lock()
	for _, name := range names {
		known, ok := w.last[name][payer]
		switch {
		case name == "":
			continue
		case !ok && !w.add(payer, name, namespaces == nil):
			w.refused++
			continue
		case !ok:
			known.namespaces, isNew = namespaces, true
		case known.namespaces != nil && !slices.Equal(known.namespaces, namespaces):
			whole := union(known.namespaces, namespaces)
			isNew = isNew || whole == nil || len(whole) != len(known.namespaces)
			known.namespaces = whole
		}
		known.last = now
		w.last[name][payer] = known
	}
	w.changed = w.changed || isNew
	w.mu.Unlock()
	if isNew {
		w.notify()
	}
}

// union returns the namespaces of both lists, sorted; nil: all.
func union(a, b []string) []string {
	if a == nil || b == nil {
		return nil
	}
	both := append(append(make([]string, 0, len(a)+len(b)), a...), b...) // never nil
	slices.Sort(both)
	return slices.Compact(both)
}

// add counts one more name of a payer. It reports false if its share is used up. w.mu is held.
func (w *wanted) add(payer fair.Payer, name string, all bool) bool {
	s, field := w.shares[payer], !all && page.IsField(name)
	if w.total >= maxWanted || s.names >= maxWantedEach || field && s.fields >= page.MaxNamed {
		return false
	}
	if w.last[name] == nil {
		w.last[name] = map[fair.Payer]use{}
	}
	w.total++
	if s.names++; field {
		s.fields++
	}
	w.shares[payer] = s
	return true
}

func (w *wanted) expire(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	counted := w.total
	w.total, w.shares = 0, map[fair.Payer]share{}
	for name, uses := range w.last {
		for payer, u := range uses {
			if now.Sub(u.last) > useTTL {
				delete(uses, payer)
				continue
			}
			s := w.shares[payer]
			if s.names++; u.namespaces != nil && page.IsField(name) {
				s.fields++
			}
			w.shares[payer], w.total = s, w.total+1
		}
		if len(uses) == 0 {
			delete(w.last, name)
		}
	}
	w.changed = w.changed || w.total != counted
}

func (w *wanted) setAll(all bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed = w.changed || w.all != all
	w.all = all
}

// take returns the names, sorted, and in of those of which only the series of these namespaces are wanted. changed
// reports whether they have changed since the last call.
func (w *wanted) take() (all bool, names []string, of map[string][]string, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.changed {
		return w.all, nil, nil, false
	}
	w.changed, of = false, map[string][]string{}
	for _, held := range w.held {
		names = append(names, held...)
	}
	for name, uses := range w.last {
		whose := []string{}
		for _, u := range uses {
			whose = union(whose, u.namespaces)
		}
		if whose == nil {
			names = append(names, name)
		} else {
			of[name] = whose
		}
	}
	slices.Sort(names)
	return w.all, slices.Compact(names), of, true
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
	names = len(w.last)
	held := map[string]bool{}
	for _, list := range w.held {
		for _, name := range list {
			if w.last[name] == nil && !held[name] {
				held[name] = true
				names++
			}
		}
	}
	return names, w.refused
}

func (w *wanted) keepsAll() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all
}
