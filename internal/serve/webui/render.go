// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	// renderEvery is the time between two views.
	renderEvery = view.RefreshSmall
	// renderShare limits the time spent on views: after each, the renderer pauses for
	// renderShare times as long.
	renderShare = 4
	// waitFor is the duration of a build up to which requests wait for the new view.
	// If builds take longer, requests get the previous view, unless it is older than
	// maxOld.
	waitFor = 25 * time.Millisecond
	maxOld  = 15 * time.Second
	// keepUnused is how long an unused view is kept.
	keepUnused = time.Minute
	// maxAlive limits the bytes of responses in memory: those of the newest view with
	// its scopes, and older ones that slow clients still read.
	maxAlive = 128 << 20
)

var errBusy = errors.New("too many concurrent responses")

// scope is the rights of a viewer.
type scope struct {
	all        bool
	namespaces []string // the visible ones, sorted, unless all is set
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
	users int // requests that are sending it, and one more while it is the newest
}

// generation is the whole state at one moment.
type generation struct {
	number     uint64
	view       view.View
	at         time.Time
	namespaces []string           // the namespaces in the view, sorted
	scopes     map[string]*scoped // by scope.key; guarded by renderer.mu
}

// scoped is the part of a generation that viewers with the same rights see.
type scoped struct {
	view   view.View          // with complete lists
	nodes  []view.NodeSummary // of view.Nodes, in the same order
	size   int                // approximate bytes
	bodies map[bool]*body

	mu     sync.Mutex
	orders map[string][]int32          // indexes of nodes, by order
	held   map[string]*view.HolderPage // by the viewer's own prices
}

// renderer builds each view once for all requests.
type renderer struct {
	source Source

	mu       sync.Mutex
	newest   *generation
	took     time.Duration // the duration of its build
	next     time.Time     // the earliest next build
	building chan struct{} // closed after the current build; nil: no build is running
	unused   *time.Timer
	alive    int // bytes
	builds   uint64
	epoch    int64            // tells the ids of this process from those of another
	feeds    map[string]*feed // by scope.key
}

func newRenderer(source Source) *renderer {
	return &renderer{source: source, epoch: time.Now().UnixNano(), feeds: map[string]*feed{}}
}

// current returns the newest generation. While the next one is being built, it waits
// for it or returns the previous one; see waitFor.
func (r *renderer) current() *generation {
	r.mu.Lock()
	now := time.Now()
	g := r.newest
	if (g == nil || !now.Before(r.next) || now.Before(g.at)) && r.building == nil {
		r.building = make(chan struct{})
		go r.build() // always returns, because a Source does not block
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

// quick reports whether the last build took at most waitFor.
func (r *renderer) quick() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took <= waitFor
}

// build builds the next generation.
func (r *renderer) build() {
	began := time.Now()
	g := &generation{view: r.source.View(), at: began, scopes: map[string]*scoped{}}
	g.namespaces = g.view.NamespacesSeen()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget()
	r.builds++
	g.number = r.builds
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

// forget drops the newest generation. The caller holds r.mu.
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

// spent delays the next build according to the time spent. The caller holds r.mu.
func (r *renderer) spent(since time.Time) {
	if spent := time.Since(since); spent > 0 {
		r.next = r.next.Add(min(renderShare*spent, 30*time.Second))
	}
}

// see returns the part of a generation that s may see.
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
	x := &scoped{view: g.view, bodies: map[bool]*body{}, orders: map[string][]int32{}, held: map[string]*view.HolderPage{}}
	if !s.all {
		x.view = g.view.Only(s.namespaces)
		x.view.Namespaces, x.view.UnaskedNamespaces = append([]string{}, s.namespaces...), s.unasked // never nil
	}
	x.nodes = x.view.NodeSummaries()
	x.size = x.weigh(s.all)
	if g == r.newest {
		g.scopes[key] = x
		r.alive += x.size
	}
	r.spent(began)
	return x, nil
}

// weigh returns the approximate bytes of x, without those that all scopes share.
func (x *scoped) weigh(all bool) int {
	size := len(x.nodes) * 300
	for i := range x.view.Nodes {
		if !all {
			size += len(x.view.Nodes[i].GPUs) * 200
		}
	}
	return size
}

// take returns the encoded view of a generation for s. The caller must call give.
func (r *renderer) take(g *generation, s *scope, zipped bool) (*body, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.takeLocked(g, s, zipped)
}

func (r *renderer) takeLocked(g *generation, s *scope, zipped bool) (*body, error) {
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
		v := x.view.Bounded(x.nodes, s.all)
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

// drop ends one use of a body. The caller holds r.mu.
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
