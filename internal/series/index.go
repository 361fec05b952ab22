// SPDX-License-Identifier: Apache-2.0

package series

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// podShards is how many locks the index of pods has. Each is held for one
// entry at a time, so that an update of one target's owners does not hold up
// readers of other pods.
const podShards = 64

// podIndex says by pod which targets know it. Its locks are the innermost:
// nothing else is locked while one is held.
type podIndex struct {
	seed   maphash.Seed
	pods   atomic.Int64
	shards [podShards]podShard
}

type podShard struct {
	mu   sync.RWMutex
	pods map[podKey]*podEntry
	peak int // the most entries since pods was made: a map does not shrink
}

type podKey struct{ namespace, pod string }

// podEntry are the targets that know a pod.
type podEntry struct {
	// holders are where it holds or held a device. They are changed under the shard's
	// lock and read without it. An entry that has left the index has none.
	holders atomic.Pointer[holder]
	own     []*Target // its own expositions
}

// holder is a target on which a pod holds or held a device. The holding is
// guarded by the target's mu.
type holder struct {
	target  *Target
	holding *holding
	next    atomic.Pointer[holder] // it stays when the holder leaves the list, for who reads it then
}

// removeHolder takes a target out of the list of holders. The shard's lock is held.
func (e *podEntry) removeHolder(t *Target) {
	for at := &e.holders; at.Load() != nil; at = &at.Load().next {
		if h := at.Load(); h.target == t {
			at.Store(h.next.Load())
			return
		}
	}
}

func newPodIndex() *podIndex {
	x := &podIndex{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].pods = map[podKey]*podEntry{}
	}
	return x
}

func (x *podIndex) shard(k podKey) *podShard {
	return &x.shards[maphash.String(x.seed, k.pod)%podShards]
}

// add notes that a target knows a pod: where the pod holds devices, or, with no
// holding, as its own exposition. It is called once for each pair.
func (x *podIndex) add(k podKey, t *Target, h *holding) {
	s := x.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.pods[k]
	if e == nil {
		e = &podEntry{}
		s.pods[k] = e
		s.peak = max(s.peak, len(s.pods))
		x.pods.Add(1)
	}
	if h == nil {
		e.own = append(e.own, t)
	} else {
		first := &holder{target: t, holding: h}
		first.next.Store(e.holders.Load())
		e.holders.Store(first)
	}
}

// remove undoes add.
func (x *podIndex) remove(k podKey, t *Target, own bool) {
	s := x.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.pods[k]
	if e == nil {
		return
	}
	if i := slices.Index(e.own, t); own && i >= 0 {
		e.own = slices.Delete(e.own, i, i+1)
	}
	if !own {
		e.removeHolder(t)
	}
	if e.holders.Load() != nil || len(e.own) > 0 {
		return
	}
	delete(s.pods, k)
	x.pods.Add(-1)
	if s.peak > 64 && len(s.pods) < s.peak/4 {
		s.pods = rebuilt(s.pods)
		s.peak = len(s.pods)
	}
}

// entry is what is known of a pod; nil: nothing.
func (x *podIndex) entry(k podKey) *podEntry {
	s := x.shard(k)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pods[k]
}

// holders is the first of the targets where a pod holds or held a device.
func (x *podIndex) holders(k podKey) *holder {
	if e := x.entry(k); e != nil {
		return e.holders.Load()
	}
	return nil
}

// own are a pod's own expositions.
func (x *podIndex) own(k podKey) []*Target {
	s := x.shard(k)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.pods[k]; e != nil {
		return slices.Clone(e.own)
	}
	return nil
}

// rebuilt is a map of the same entries that has no room for those deleted.
func rebuilt[K comparable, V any](m map[K]V) map[K]V {
	out := make(map[K]V, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
