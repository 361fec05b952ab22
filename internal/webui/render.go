// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// renderEvery is the time between two views: the page asks once a second.
	renderEvery = time.Second
	// renderShare bounds the time spent on views to this part of one core.
	renderShare = 4
	// maxAlive bounds the bytes of answers in memory: those of the newest view,
	// and older ones that slow clients still read.
	maxAlive = 128 << 20
)

var errBusy = errors.New("too many answers are under way")

// scope is what a viewer may see.
type scope struct {
	all        bool
	namespaces []string // otherwise: sorted
	unasked    int      // namespaces whose rights are not known yet
}

func (s *scope) key() string {
	if s.all {
		return "*"
	}
	return fmt.Sprintf("%d %s", s.unasked, strings.Join(s.namespaces, ","))
}

// body is an encoded view, shared by all viewers with the same rights.
type body struct {
	bytes []byte
	at    time.Time
	users int // requests that send it, and one while it is the newest
}

// renderer makes each view once, however many ask for it.
type renderer struct {
	source Source

	mu         sync.Mutex
	view       View
	namespaces []string
	at, next   time.Time
	bodies     map[string]*body // of view
	alive      int              // bytes
}

func newRenderer(source Source) *renderer {
	return &renderer{source: source, bodies: map[string]*body{}}
}

// refresh takes a new view if one is due. r.mu is held.
func (r *renderer) refresh(now time.Time) {
	if now.Before(r.next) && !now.Before(r.at) {
		return
	}
	for _, b := range r.bodies {
		r.drop(b)
	}
	clear(r.bodies)
	r.view, r.at, r.next = r.source.View(), now, now.Add(renderEvery)
	r.namespaces = r.view.namespaces()
	r.spent(now)
}

// spent puts off the next view after an expensive one. r.mu is held.
func (r *renderer) spent(since time.Time) {
	if spent := time.Since(since); spent > 0 {
		r.next = r.next.Add(min(renderShare*spent, 30*time.Second))
	}
}

// known are the namespaces of the newest view, sorted.
func (r *renderer) known() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refresh(time.Now())
	return r.namespaces
}

// take returns the newest view as s shows it. The caller gives it back.
func (r *renderer) take(s *scope, zipped bool) (*body, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	began := time.Now()
	r.refresh(began)
	key := s.key()
	if zipped {
		key = "gzip " + key
	}
	b := r.bodies[key]
	if b == nil {
		if r.alive > maxAlive {
			return nil, errBusy
		}
		began = time.Now()
		v := r.view
		if !s.all {
			v = r.view.only(s.namespaces)
			v.Namespaces, v.UnaskedNamespaces = append([]string{}, s.namespaces...), s.unasked // never nil
		}
		encoded, err := encode(&v, zipped)
		if err != nil {
			return nil, err
		}
		b = &body{bytes: encoded, at: r.at, users: 1}
		r.alive += len(b.bytes)
		r.bodies[key] = b
		r.spent(began)
	}
	b.users++
	return b, nil
}

func (r *renderer) give(b *body) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(b)
}

// drop ends one use. r.mu is held.
func (r *renderer) drop(b *body) {
	if b.users--; b.users == 0 {
		r.alive -= len(b.bytes)
	}
}

func encode(v any, zipped bool) ([]byte, error) {
	var out bytes.Buffer
	w := io.Writer(&out)
	if zipped {
		z, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
		if err != nil {
			return nil, err
		}
		defer func() { _ = z.Close() }() // again, after an error
		if err := json.NewEncoder(z).Encode(v); err != nil {
			return nil, fmt.Errorf("encode the answer: %w", err)
		}
		if err := z.Close(); err != nil {
			return nil, fmt.Errorf("compress the answer: %w", err)
		}
		return out.Bytes(), nil
	}
	if err := json.NewEncoder(w).Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return out.Bytes(), nil
}

// namespaces are those that the view names, sorted.
func (v *View) namespaces() []string {
	found := map[string]bool{}
	for i := range v.Workloads {
		found[v.Workloads[i].Namespace] = true
	}
	for i := range v.Recent {
		found[v.Recent[i].Namespace] = true
	}
	for i := range v.Targets {
		if ns := v.Targets[i].Namespace; ns != "" {
			found[ns] = true
		}
	}
	for i := range v.Nodes {
		for j := range v.Nodes[i].GPUs {
			for _, o := range v.Nodes[i].GPUs[j].Owners {
				found[o.Namespace] = true
			}
		}
	}
	out := make([]string, 0, len(found))
	for ns := range found {
		out = append(out, ns)
	}
	slices.Sort(out)
	return out
}

// only is the part of the view that belongs to the namespaces: their workloads,
// decisions and pods' targets, and the GPUs that their pods hold. Owners of
// other namespaces on a shared GPU are left out.
func (v *View) only(namespaces []string) View {
	ours := make(map[string]bool, len(namespaces))
	for _, ns := range namespaces {
		ours[ns] = true
	}
	out := View{
		Time: v.Time, Version: v.Version, Leader: v.Leader, LeaderID: v.LeaderID, MaxAge: v.MaxAge,
		Nodes: []Node{}, Targets: []Target{}, Workloads: []Workload{}, Recent: []Event{},
	}
	for i := range v.Workloads {
		if ours[v.Workloads[i].Namespace] {
			out.Workloads = append(out.Workloads, v.Workloads[i])
		}
	}
	for i := range v.Recent {
		if ours[v.Recent[i].Namespace] {
			out.Recent = append(out.Recent, v.Recent[i])
		}
	}
	for i := range v.Targets {
		if ours[v.Targets[i].Namespace] {
			out.Targets = append(out.Targets, v.Targets[i])
		}
	}
	for i := range v.Nodes {
		if n := v.Nodes[i].only(ours); len(n.GPUs) > 0 {
			out.Nodes = append(out.Nodes, n)
		}
	}
	return out
}

func (n *Node) only(ours map[string]bool) Node {
	out := Node{Name: n.Name}
	for _, g := range n.GPUs {
		var owners []Owner
		for _, o := range g.Owners {
			if ours[o.Namespace] {
				owners = append(owners, o)
			}
		}
		if len(owners) > 0 {
			g.Owners = owners
			out.GPUs = append(out.GPUs, g)
		}
	}
	return out
}
