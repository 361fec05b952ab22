// SPDX-License-Identifier: Apache-2.0

package series

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// PodHandle caches the store's entry of a pod, so that repeated reads do not look up
// the pod's name again. It is for one pod and one store. The zero value is empty. It
// is not safe for concurrent use.
type PodHandle struct{ entry *podEntry }

// FieldReader reads one field of many pods at one moment.
type FieldReader struct {
	store  *Store
	field  *gpu.Field // nil: unknown field
	now    time.Time
	maxAge time.Duration
}

// FieldReader returns a reader of a field at now.
func (s *Store) FieldReader(f gpu.FieldID, now time.Time, maxAge time.Duration) FieldReader {
	field, ok := gpu.Lookup(f)
	if !ok {
		field = nil
	}
	return FieldReader{s, field, now, maxAge}
}

// PodOn is Store.PodOn with the pod's handle.
func (r *FieldReader) PodOn(h *Holder, handle *PodHandle) (Reading, bool) {
	if r.field == nil {
		return Reading{}, false
	}
	k := podKey{h.Namespace, h.Pod}
	var first *holder
	if handle.entry != nil {
		first = handle.entry.holders.Load()
	}
	if first == nil { // the handle is empty, or its entry was removed from the index
		if handle.entry = r.store.index.entry(k); handle.entry == nil {
			return Reading{}, false
		}
		first = handle.entry.holders.Load()
	}
	only, several := holderOn(first, h.Node)
	switch {
	case only == nil:
		return Reading{}, false
	case several:
		return r.store.podOnMany(h, r.field, r.now, r.maxAge)
	}
	return r.podOnOne(h, only)
}

// holderOn returns the first holder on a node, and whether there are more.
func holderOn(first *holder, node string) (found *holder, several bool) {
	for h := first; h != nil; h = h.next.Load() {
		if h.target.facts.labels.Load().Node != node {
			continue
		}
		if found != nil {
			return found, true
		}
		found = h
	}
	return found, false
}

// podOnOne is PodOn for a pod with devices on one target, the usual case. It applies
// the rules of podOnMany: the target's claims are not confirmed by another target.
// They are ignored while a target of a lower rank assigns devices.
func (r *FieldReader) podOnOne(h *Holder, x *holder) (Reading, bool) {
	t := x.target
	if !t.facts.alone.Load() {
		if lowest, found := r.store.nodes.authority(h.Node, r.now, r.maxAge); found && t.facts.rank() > lowest {
			return Reading{}, false
		}
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed != nil {
		return Reading{}, false
	}
	q := t.query(podKey{h.Namespace, h.Pod}, r.field, r.now, r.maxAge)
	g := gathered{keep: q.keep}
	for i := range x.holding.spans {
		if g.want == h.Devices { // more devices than the pod can hold
			return Reading{}, false
		}
		q.gather(&t.columns, &g, x.holding.spans[i].device, x.holding.spans[i].from)
	}
	return g.reading(r.field)
}
