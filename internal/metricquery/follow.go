// SPDX-License-Identifier: Apache-2.0

package metricquery

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// followers are the readers that wait for changes of MetricQueries, and which of these
// are evaluated more often for them: at most limit of a namespace, so that streams do
// not multiply a namespace's queries.
type followers struct {
	limit int

	mu sync.RWMutex
	by map[string]*namespaceFollowers
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
	if n.often[key.Name] || len(n.often) >= f.limit {
		return false
	}
	n.often[key.Name] = true
	return true
}

// remove counts a reader less. It returns the object that takes the place of one without
// readers; empty if there is none.
func (f *followers) remove(key types.NamespacedName) (next string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.by[key.Namespace]
	if n.readers[key.Name]--; n.readers[key.Name] > 0 {
		return ""
	}
	delete(n.readers, key.Name)
	if len(n.readers) == 0 {
		delete(f.by, key.Namespace)
		return ""
	}
	if !n.often[key.Name] {
		return ""
	}
	delete(n.often, key.Name)
	for name := range n.readers {
		if !n.often[name] {
			n.often[name] = true
			return name
		}
	}
	return ""
}

// often reports whether the object is evaluated more often.
func (f *followers) often(key types.NamespacedName) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n := f.by[key.Namespace]
	return n != nil && n.often[key.Name]
}

// Follow has a MetricQuery with a PromQL query evaluated each Config.FollowedEvery, until
// stop is called: for a reader that waits for changes. The object need not exist yet. Of a
// namespace, Config.FollowedPerNamespace objects are evaluated so often, the first ones
// that were followed; the others are evaluated each Config.QueryEvery.
func (k *Keeper) Follow(namespace, name string) (stop func()) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if k.followers.add(key) {
		k.reschedule(key)
	}
	return sync.OnceFunc(func() {
		if next := k.followers.remove(key); next != "" {
			k.reschedule(types.NamespacedName{Namespace: namespace, Name: next})
		}
	})
}

// reschedule has an entry compute its next evaluation again.
func (k *Keeper) reschedule(key types.NamespacedName) {
	k.mu.RLock()
	e := k.entries[key]
	k.mu.RUnlock()
	if e == nil {
		return
	}
	select {
	case e.rescheduled <- struct{}{}:
	default:
	}
}
