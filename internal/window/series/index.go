// SPDX-License-Identifier: Apache-2.0

package series

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
)

// podShards is the number of locks of the pod index. A lock is held for one entry at
// a time, so that an update of one target's owners does not delay readers of other
// pods.
const podShards = 64

// podIndex maps each pod to its targets. No other lock is taken while one of its
// locks is held.
type podIndex struct {
	seed   maphash.Seed
	pods   atomic.Int64
	shards [podShards]podShard
}

type podShard struct {
	mu   sync.RWMutex
	pods table[podKey, *podEntry]
}

type podKey struct{ namespace, pod string }

// podEntry is the targets of a pod.
type podEntry struct {
	// holders is the list of targets on which the pod holds a device. It is
	// changed under the shard's lock and read without it. An entry that was removed
	// from the index has none.
	holders atomic.Pointer[holder]
	own     []*Target // the targets of the pod's own metrics
}

// holder is a target on which a pod holds a device. The target's mu guards
// the holding.
type holder struct {
	target  *Target
	holding *holding
	next    atomic.Pointer[holder] // unchanged after the holder is removed, for concurrent readers
}

// removeHolder removes a target from the list of holders. The caller holds the
// shard's lock.
func (e *podEntry) removeHolder(t *Target) {
	for at := &e.holders; at.Load() != nil; at = &at.Load().next {
		if h := at.Load(); h.target == t {
			at.Store(h.next.Load())
			return
		}
	}
}

func (x *podIndex) shard(k podKey) *podShard {
	return &x.shards[maphash.String(x.seed, k.pod)%podShards]
}

// add adds a target to a pod's entry: as one on which the pod holds devices, or if h
// is nil as one of the pod's own metrics. It is called once for each pair.
func (x *podIndex) add(k podKey, t *Target, h *holding) {
	s := x.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.pods.entries[k]
	if e == nil {
		e = &podEntry{}
		s.pods.put(k, e)
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
	e := s.pods.entries[k]
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
	delete(s.pods.entries, k)
	s.pods.fit()
	x.pods.Add(-1)
}

// entry returns a pod's entry; nil if there is none.
func (x *podIndex) entry(k podKey) *podEntry {
	s := x.shard(k)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.pods.entries[k]
}

// holders returns the list of targets on which a pod holds a device.
func (x *podIndex) holders(k podKey) *holder {
	if e := x.entry(k); e != nil {
		return e.holders.Load()
	}
	return nil
}

// own returns the targets of a pod's own metrics.
func (x *podIndex) own(k podKey) []*Target {
	s := x.shard(k)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.pods.entries[k]; e != nil {
		return slices.Clone(e.own)
	}
	return nil
}
