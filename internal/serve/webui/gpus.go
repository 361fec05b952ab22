// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The sizes of a page of GPUs.
const (
	pageGPUs = 100
	mostGPUs = 1000
)

// gpuChoice is the parameters of a request for GPUs.
type gpuChoice struct {
	pool            *string // nil: any
	node, namespace string
	state           view.State
	text            string // part of the node's name, of the UUID, or of namespace/pod
	sort            string
	offset, limit   int
}

// parseGPUChoice parses the parameters pool, node, namespace, state, q, sort, offset and limit.
func parseGPUChoice(q url.Values) (c gpuChoice, err error) {
	order := q.Get("sort")
	if order != "" && order != "name" && order != "utilization" && order != "temperature" {
		return c, fmt.Errorf("sort is %.40q, want name, utilization or temperature", order)
	}
	general, err := parseChoice(url.Values{"q": q["q"], "offset": q["offset"], "limit": q["limit"]}, pageGPUs, mostGPUs)
	if err != nil {
		return c, err
	}
	c = gpuChoice{node: q.Get("node"), namespace: q.Get("namespace"), state: view.State(q.Get("state")), text: general.text, sort: order, offset: general.offset, limit: general.limit}
	if pools, ok := q["pool"]; ok {
		c.pool = &pools[0]
	}
	if c.state != "" && !slices.Contains([]view.State{view.Active, view.Idle, view.Free, view.Stale}, c.state) {
		return c, fmt.Errorf("state is %.40q, want %s, %s, %s or %s", c.state, view.Active, view.Idle, view.Free, view.Stale)
	}
	return c, nil
}

// selects reports whether a request wants a GPU.
func (c *gpuChoice) selects(node string, g *view.GPU) bool {
	owned := func(matches func(*view.Owner) bool) bool {
		return slices.ContainsFunc(g.Owners, func(o view.Owner) bool { return matches(&o) })
	}
	if c.namespace != "" && !owned(func(o *view.Owner) bool { return o.Namespace == c.namespace }) {
		return false
	}
	contains := func(s string) bool { return strings.Contains(strings.ToLower(s), c.text) }
	return c.text == "" || contains(node) || contains(g.UUID) || owned(func(o *view.Owner) bool { return contains(o.Namespace + "/" + o.Pod) })
}

// place is a GPU of a view, by its node's index and its own.
type place struct{ node, gpu int32 }

// pickGPUs returns the page of GPUs that c selects.
func (x *scoped) pickGPUs(c *gpuChoice) view.GPUPage {
	p := view.GPUPage{Time: x.view.Time, MaxAge: x.view.MaxAge, Offset: c.offset, GPUs: []view.GPUEntry{}}
	var found []place
	for i := range x.view.Nodes {
		n := &x.view.Nodes[i]
		if c.pool != nil && n.Pool != *c.pool || c.node != "" && n.Name != c.node {
			continue
		}
		for j := range n.GPUs {
			if g := &n.GPUs[j]; (c.state == "" || x.view.State(g) == c.state) && c.selects(n.Name, g) {
				found = append(found, place{int32(i), int32(j)})
			}
		}
	}
	p.Total = len(found)
	if c.sort == "utilization" || c.sort == "temperature" {
		slices.SortStableFunc(found, func(a, b place) int { return cmp.Compare(x.rank(c.sort, b), x.rank(c.sort, a)) })
	}
	found = found[min(c.offset, len(found)):]
	for _, at := range found[:min(c.limit, len(found))] {
		n := &x.view.Nodes[at.node]
		g := &n.GPUs[at.gpu]
		p.GPUs = append(p.GPUs, view.GPUEntry{Node: n.Name, Pool: n.Pool, Model: n.Model, State: x.view.State(g), GPU: *g})
	}
	p.GPUs, _ = view.Fit(p.GPUs, c.limit, bytesPage)
	return p
}

// rank is the sort key of a GPU, from the highest; a GPU without a value is last.
func (x *scoped) rank(order string, at place) float64 {
	g := &x.view.Nodes[at.node].GPUs[at.gpu]
	v := g.Utilization
	if order == "temperature" {
		v = x.view.Temperature(g)
	}
	if v == nil {
		return math.Inf(-1)
	}
	return *v
}

func (p *Page) serveGPUs(w http.ResponseWriter, r *http.Request, v Viewer) {
	c, err := parseGPUChoice(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p.answer(w, r, v, func(x *scoped) (any, error) { return x.pickGPUs(&c), nil })
}
