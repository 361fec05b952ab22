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
	// renderEvery is the time between two views.
	renderEvery = time.Second
	// renderShare bounds the time spent on views to this part of one core.
	renderShare = 4
	// waitFor is how long making a view may take for requests to wait for it. They
	// get the one before where it takes longer, unless that is older than maxOld.
	waitFor = 25 * time.Millisecond
	maxOld  = 15 * time.Second
	// keepUnused is how long a view is kept that nobody looks at.
	keepUnused = time.Minute
	// maxAlive bounds the bytes of answers in memory: those of the newest view with
	// what they are made of, and older ones that slow clients still read.
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

// generation is everything at one moment.
type generation struct {
	view       View
	at         time.Time
	namespaces []string           // that the view names, sorted
	scopes     map[string]*scoped // by scope.key; guarded by renderer.mu
}

// scoped is what viewers with the same rights see of a generation.
type scoped struct {
	view   View     // whole
	nodes  []NodeAt // of view.Nodes, in the same order
	size   int      // bytes, roughly
	bodies map[bool]*body

	mu     sync.Mutex
	orders map[string][]int32 // indices of nodes, by what they are sorted by
}

// renderer makes each view once, however many ask for it.
type renderer struct {
	source Source

	mu       sync.Mutex
	newest   *generation
	took     time.Duration // to make it
	next     time.Time
	building chan struct{} // closed when the next generation is there; nil: none is being made
	unused   *time.Timer
	alive    int // bytes
}

func newRenderer(source Source) *renderer { return &renderer{source: source} }

// current is the newest generation, or the one before while that is being made.
func (r *renderer) current() *generation {
	r.mu.Lock()
	now := time.Now()
	g := r.newest
	if (g == nil || !now.Before(r.next) || now.Before(g.at)) && r.building == nil {
		r.building = make(chan struct{})
		go r.build() // ends by itself: a Source does not block
	}
	if r.unused != nil {
		r.unused.Reset(keepUnused)
	}
	building := r.building
	r.mu.Unlock()
	if building != nil && (g == nil || r.quick() || now.Sub(g.at) > maxOld) {
		<-building
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.newest != nil {
			return r.newest
		}
	}
	return g
}

// quick reports whether a view takes little time to make.
func (r *renderer) quick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took <= waitFor
}

// build makes the next generation.
func (r *renderer) build() {
	began := time.Now()
	g := &generation{view: r.source.View(), at: began, scopes: map[string]*scoped{}}
	g.namespaces = g.view.namespaces()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	r.newest, r.took, r.next = g, time.Since(began), began.Add(renderEvery)
	r.spent(began)
	if r.unused == nil {
		r.unused = time.AfterFunc(keepUnused, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.forget()
		})
	}
	close(r.building)
	r.building = nil
}

// forget drops the newest generation. r.mu is held.
func (r *renderer) forget() {
	if r.newest == nil {
		return
	}
	for _, s := range r.newest.scopes {
		r.alive -= s.size
		for _, b := range s.bodies {
			r.drop(b)
		}
	}
	r.newest = nil
}

// spent puts off the next view after an expensive one. r.mu is held.
func (r *renderer) spent(since time.Time) {
	if spent := time.Since(since); spent > 0 {
		r.next = r.next.Add(min(renderShare*spent, 30*time.Second))
	}
}

// see is what s shows of a generation.
func (r *renderer) see(g *generation, s *scope) (*scoped, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seeLocked(g, s)
}

func (r *renderer) seeLocked(g *generation, s *scope) (*scoped, error) {
	key := s.key()
	if x := g.scopes[key]; x != nil {
		return x, nil
	}
	if r.alive > maxAlive {
		return nil, errBusy
	}
	began := time.Now()
	x := &scoped{view: g.view, bodies: map[bool]*body{}, orders: map[string][]int32{}}
	if !s.all {
		x.view = g.view.only(s.namespaces)
		x.view.Namespaces, x.view.UnaskedNamespaces = append([]string{}, s.namespaces...), s.unasked // never nil
	}
	x.nodes = x.view.nodesAt()
	x.size = x.weigh(s.all)
	if g == r.newest {
		g.scopes[key] = x
		r.alive += x.size
	}
	r.spent(began)
	return x, nil
}

// weigh is about how many bytes x takes beside what all scopes share.
func (x *scoped) weigh(all bool) int {
	size := len(x.nodes) * 300
	for i := range x.view.Nodes {
		if !all {
			size += len(x.view.Nodes[i].GPUs) * 200
		}
	}
	return size
}

// take returns the view of a generation as s shows it. The caller gives it back.
func (r *renderer) take(g *generation, s *scope, zipped bool) (*body, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, err := r.seeLocked(g, s)
	if err != nil {
		return nil, err
	}
	b := x.bodies[zipped]
	if b == nil {
		if r.alive > maxAlive {
			return nil, errBusy
		}
		began := time.Now()
		v := x.view.bounded(x.nodes, s.all)
		v.Refresh = max(v.Refresh, r.next.Sub(g.at))
		encoded, err := encode(&v, zipped)
		if err != nil {
			return nil, err
		}
		b = &body{bytes: encoded, at: g.at}
		r.alive += len(b.bytes)
		if g == r.newest {
			b.users++
			x.bodies[zipped] = b
		}
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

// only is what is left of a node. Its labels and its condition are left out:
// whoever may read a namespace may not read nodes.
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
