// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// followers are the readers that wait for changes of MetricQueries, and which of these
// are evaluated more often for them: at most share of a namespace and total in all, so
// that streams do not multiply the queries.
type followers struct {
	share, total int

	mu    sync.RWMutex
	by    map[string]*namespaceFollowers
	taken int // of total
}

type namespaceFollowers struct {
	readers map[string]int // by the object's name
	often   map[string]bool
}

// add counts a reader. It reports whether the object is now evaluated more often, and
// was not before.
func (f *followers) add(key types.NamespacedName) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.by[key.Namespace]
	if n == nil {
		n = &namespaceFollowers{readers: map[string]int{}, often: map[string]bool{}}
		f.by[key.Namespace] = n
	}
	n.readers[key.Name]++
	return f.take(n, key.Name)
}

// take has an object evaluated more often, if there is room. f.mu is held.
func (f *followers) take(n *namespaceFollowers, name string) bool {
	if n.often[name] || len(n.often) >= f.share || f.taken >= f.total {
		return false
	}
	n.often[name] = true
	f.taken++
	return true
}

// remove counts a reader less. If an object has no readers any more, another one may
// take its place: first one of the same namespace. It is returned.
func (f *followers) remove(key types.NamespacedName) (next types.NamespacedName, changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.by[key.Namespace]
	if n.readers[key.Name]--; n.readers[key.Name] > 0 {
		return next, false
	}
	delete(n.readers, key.Name)
	if len(n.readers) == 0 {
		delete(f.by, key.Namespace)
	}
	if !n.often[key.Name] {
		return next, false
	}
	wasFull := f.taken >= f.total
	delete(n.often, key.Name)
	f.taken--
	if next, changed = f.promote(key.Namespace, n); changed || !wasFull {
		return next, changed
	}
	for namespace, n := range f.by {
		if next, changed = f.promote(namespace, n); changed {
			break
		}
	}
	return next, changed
}

// promote has another object of a namespace evaluated more often, if there is one. f.mu
// is held.
func (f *followers) promote(namespace string, n *namespaceFollowers) (next types.NamespacedName, changed bool) {
	if len(n.often) >= f.share {
		return next, false
	}
	for name := range n.readers {
		if f.take(n, name) {
			return types.NamespacedName{Namespace: namespace, Name: name}, true
		}
	}
	return next, false
}

// often reports whether the object is evaluated more often.
func (f *followers) often(key types.NamespacedName) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := f.by[key.Namespace]
	return n != nil && n.often[key.Name]
}

// Follow has a MetricQuery evaluated each Config.FollowedEvery, until stop is called: for
// a reader that waits for changes. The object need not exist yet.
// Config.FollowedPerNamespace objects of a namespace and Config.Followed in all are
// evaluated so often, the first ones that were followed.
func (k *Keeper) Follow(namespace, name string) (stop func()) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if k.followers.add(key) {
		k.reschedule(namespace)
	}
	return sync.OnceFunc(func() {
		next, changed := k.followers.remove(key)
		k.reschedule(key.Namespace)
		if changed && next.Namespace != key.Namespace {
			k.reschedule(next.Namespace)
		}
	})
}

// reschedule hands the intervals of a namespace's objects to the scheduler.
func (k *Keeper) reschedule(namespace string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rank(namespace)
}
