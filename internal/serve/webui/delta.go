// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// A frame is what changed from one view to the next, of viewers with the same rights: the
// members of a view that differ, whole, except for lists, of which it has the entries that
// differ, by key, and the order of the keys if it differs.
type frame struct {
	from string // the id of the view that it is about
	id   string // of the view that it leads to
	data []byte // JSON
}

// The bounds of the frames that are kept for viewers with the same rights.
const (
	maxFrames     = 16
	maxFrameBytes = 1 << 20
)

// feed makes the frames for viewers with the same rights. renderer.mu guards it.
type feed struct {
	id      string                       // of the newest view
	number  uint64                       // of its generation
	members map[string]uint64            // hashes of the members that are no lists
	lists   map[string]map[string]uint64 // hashes of the entries of lists, by key
	order   map[string]uint64
	frames  []frame // oldest first
	bytes   int
	asked   time.Time
}

// listDelta is the difference of a list.
type listDelta struct {
	Order []string                   `json:"order,omitempty"` // the keys; absent: as before
	Put   map[string]json.RawMessage `json:"put,omitempty"`   // the entries that differ
	Empty bool                       `json:"empty,omitempty"` // it has no entry now
}

// keyedLists returns the lists of a view with the keys of their entries. The page has the
// same keys.
func keyedLists(v *view.View) map[string]keyedList {
	return map[string]keyedList{
		"nodes":     listOf(v.Nodes, func(n *view.Node) string { return n.Name }),
		"problems":  listOf(v.Problems, func(n *view.NodeSummary) string { return n.Name }),
		"targets":   listOf(v.Targets, func(t *view.Target) string { return t.Name }),
		"workloads": listOf(v.Workloads, func(w *view.Workload) string { return w.Namespace + "/" + w.Name }),
		"hpas":      listOf(v.HPAs, func(h *view.HPA) string { return h.Namespace + "/" + h.Name }),
		"recent": listOf(v.Recent, func(e *view.Event) string {
			return e.Namespace + "/" + e.Name + " " + e.Decision.Time.Format(time.RFC3339Nano)
		}),
	}
}

type keyedList struct {
	keys    []string
	entries func(i int) ([]byte, error)
}

func listOf[T any](list []T, key func(*T) string) keyedList {
	out := keyedList{entries: func(i int) ([]byte, error) { return json.Marshal(&list[i]) }}
	seen := map[string]bool{}
	for i := range list {
		k := key(&list[i])
		for seen[k] {
			k += "+" // two entries of one key differ by their place
		}
		seen[k] = true
		out.keys = append(out.keys, k)
	}
	return out
}

var hashSeed = maphash.MakeSeed()

// advance takes a view in as the newest. The first one makes no frame. A frame that is too
// large forgets the others, so that viewers get the view whole.
func (f *feed) advance(v *view.View, id string) error {
	first := f.lists == nil
	delta := map[string]any{}
	plain, err := membersOf(v)
	if err != nil {
		return err
	}
	members := make(map[string]uint64, len(plain))
	for name, raw := range plain {
		if members[name] = maphash.Bytes(hashSeed, raw); members[name] != f.members[name] {
			delta[name] = raw
		}
	}
	for name := range f.members {
		if _, still := plain[name]; !still {
			delta[name] = nil
		}
	}
	lists, order := map[string]map[string]uint64{}, map[string]uint64{}
	for name, l := range keyedLists(v) {
		d, hashes, err := f.compare(name, &l)
		if err != nil {
			return err
		}
		lists[name] = hashes
		if order[name] = orderHash(l.keys); order[name] != f.order[name] {
			d.Order, d.Empty = l.keys, len(l.keys) == 0
		}
		if d.Put != nil || d.Order != nil || d.Empty {
			delta[name] = d
		}
	}
	from := f.id
	f.members, f.lists, f.order, f.id = members, lists, order, id
	if first {
		return nil
	}
	b, err := json.Marshal(delta)
	if err != nil {
		return fmt.Errorf("encode a difference: %w", err)
	}
	f.keep(frame{from, id, b})
	return nil
}

// keep adds a frame, within the bounds.
func (f *feed) keep(x frame) {
	f.frames, f.bytes = append(f.frames, x), f.bytes+len(x.data)
	for len(f.frames) > maxFrames || f.bytes > maxFrameBytes {
		f.bytes -= len(f.frames[0].data)
		f.frames = f.frames[1:]
		if len(f.frames) == 0 {
			return
		}
	}
}

func (f *feed) compare(name string, l *keyedList) (d listDelta, hashes map[string]uint64, err error) {
	hashes = make(map[string]uint64, len(l.keys))
	for i, k := range l.keys {
		raw, err := l.entries(i)
		if err != nil {
			return d, nil, fmt.Errorf("encode an entry of %s: %w", name, err)
		}
		h := maphash.Bytes(hashSeed, raw)
		if old, had := f.lists[name][k]; !had || old != h {
			if d.Put == nil {
				d.Put = map[string]json.RawMessage{}
			}
			d.Put[k] = raw
		}
		hashes[k] = h
	}
	return d, hashes, nil
}

func orderHash(keys []string) uint64 {
	var h maphash.Hash
	h.SetSeed(hashSeed)
	for _, k := range keys {
		_, _ = h.WriteString(k)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// membersOf returns the members of a view that are no keyed lists.
func membersOf(v *view.View) (map[string]json.RawMessage, error) {
	rest := *v
	rest.Nodes, rest.Problems, rest.Targets, rest.Workloads, rest.HPAs, rest.Recent = nil, nil, nil, nil, nil, nil
	b, err := json.Marshal(&rest)
	if err != nil {
		return nil, fmt.Errorf("encode a view: %w", err)
	}
	out := map[string]json.RawMessage{}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("split a view: %w", err)
	}
	for _, name := range []string{"nodes", "problems", "targets", "workloads", "hpas", "recent"} {
		delete(out, name)
	}
	return out, nil
}

// since returns the frames that lead from the view of an id to the newest one; ok is false if
// they are not kept.
func (f *feed) since(id string) (out []frame, ok bool) {
	if id == f.id {
		return nil, true
	}
	for i := len(f.frames) - 1; i >= 0; i-- {
		if f.frames[i].from == id {
			return slices.Clone(f.frames[i:]), true
		}
	}
	return nil, false
}

// keepFeed is how long the frames of viewers are kept who do not ask for them.
const keepFeed = time.Minute

// feedLocked returns the feed of the viewers with the same rights, up to a generation. r.mu
// is held.
func (r *renderer) feedLocked(g *generation, s *scope) (*feed, error) {
	now := time.Now()
	for key, f := range r.feeds {
		if now.Sub(f.asked) > keepFeed {
			r.alive -= f.bytes
			delete(r.feeds, key)
		}
	}
	x, err := r.seeLocked(g, s)
	if err != nil {
		return nil, err
	}
	key := s.key()
	f := r.feeds[key]
	if f == nil {
		if r.alive > maxAlive {
			return nil, errBusy
		}
		f = &feed{}
		r.feeds[key] = f
	}
	f.asked = now
	if f.id != "" && f.number >= g.number {
		return f, nil
	}
	v := x.view.Bounded(x.nodes, s.all)
	v.Refresh = max(v.Refresh, r.next.Sub(g.at))
	before := f.bytes
	// Viewers with other rights have other ids, so that a change of rights is no difference.
	err = f.advance(&v, fmt.Sprintf("%x-%x-%d", r.epoch, maphash.String(hashSeed, key), g.number))
	f.number = g.number
	r.alive += f.bytes - before
	r.spent(now)
	return f, err
}

// news returns what a viewer lacks who has the view of an id: the frames since then, or else
// the view whole, with its id. The caller must give the body back, if there is one.
func (r *renderer) news(g *generation, s *scope, id string) (frames []frame, whole *body, newest string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := r.feedLocked(g, s)
	if err != nil {
		return nil, nil, "", err
	}
	frames, ok := f.since(id)
	if !ok {
		whole, err = r.takeLocked(g, s, false)
	}
	return frames, whole, f.id, err
}

// idOf returns the id of a generation for viewers with the same rights; empty: there is none,
// because a newer one was made, or there is no room.
func (r *renderer) idOf(g *generation, s *scope) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, err := r.feedLocked(g, s); err == nil && f.number == g.number {
		return f.id
	}
	return ""
}
