// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// NodeDetail is one node with its GPUs, their owners, and its exporters.
type NodeDetail struct {
	Time    time.Time        `json:"time"`
	MaxAge  time.Duration    `json:"maxAge"` // as View.MaxAge
	Node    view.Node        `json:"node"`
	Summary view.NodeSummary `json:"summary"`
	Targets []view.Target    `json:"targets"`
	Omitted view.Omitted     `json:"omitted"` // Nodes is the number of omitted GPUs
}

// The sizes of a page of a list.
const (
	pageNodes     = 50
	mostNodes     = 200
	pageWorkloads = 20
	mostWorkloads = 50
	bytesPage     = 250_000
)

// choice is the parameters of a request for a page of a list.
type choice struct {
	pool          *string // nil: any
	problem       bool    // only entries with a problem
	text          string  // part of the name
	alike         string  // the name of a node: only nodes of its pool with the same problems
	sort          string
	offset, limit int
}

// parseChoice parses the parameters pool, problem, alike, q, sort, offset and limit.
func parseChoice(q url.Values, size, most int) (c choice, err error) {
	if pools, ok := q["pool"]; ok {
		c.pool = &pools[0]
	}
	if s := q.Get("problem"); s != "" {
		if c.problem, err = strconv.ParseBool(s); err != nil {
			return c, fmt.Errorf("problem is %.40q, want true or false", s)
		}
	}
	if c.text = strings.ToLower(q.Get("q")); len(c.text) > view.MaxName {
		return c, fmt.Errorf("q has %d bytes, names have at most %d", len(c.text), view.MaxName)
	}
	if c.alike = q.Get("alike"); len(c.alike) > view.MaxName {
		return c, fmt.Errorf("alike has %d bytes, names have at most %d", len(c.alike), view.MaxName)
	}
	if c.sort = cmp.Or(q.Get("sort"), "name"); rankBy(c.sort) == nil {
		return c, fmt.Errorf("sort is %.40q, want name, utilization, temperature, idle, free or problems", c.sort)
	}
	number := func(name string, otherwise, most int) (int, error) {
		s := q.Get(name)
		if s == "" {
			return otherwise, nil
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > most {
			return 0, fmt.Errorf("%s is %.40q, want a number from 0 to %d", name, s, most)
		}
		return n, nil
	}
	c.offset, err = number("offset", 0, 1<<30)
	limit, limitErr := number("limit", size, most)
	c.limit = limit
	return c, errors.Join(err, limitErr)
}

// rankBy returns the sort key of nodes for an order, lowest first; nil for an unknown
// order. Nodes with the same key are sorted by name.
func rankBy(order string) func(n *view.NodeSummary) float64 {
	switch order {
	case "name":
		return func(*view.NodeSummary) float64 { return 0 }
	case "idle":
		return func(n *view.NodeSummary) float64 { return -float64(n.Idle) }
	case "free":
		return func(n *view.NodeSummary) float64 { return -float64(n.Free) }
	case "problems":
		return func(n *view.NodeSummary) float64 { return -float64(n.Stale) - 1e6*float64(len(n.Problems)) }
	case "temperature":
		return func(n *view.NodeSummary) float64 {
			if n.MaxTemperatureC == nil {
				return math.Inf(1)
			}
			return -*n.MaxTemperatureC
		}
	case "utilization":
		return func(n *view.NodeSummary) float64 {
			if n.Utilization == nil {
				return 1
			}
			return -*n.Utilization
		}
	}
	return nil
}

// order returns the indexes of x.nodes in an order. It computes each order once.
func (x *scoped) order(by string) []int32 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if o := x.orders[by]; o != nil {
		return o
	}
	o := make([]int32, len(x.nodes))
	ranks, rank := make([]float64, len(x.nodes)), rankBy(by)
	for i := range o {
		o[i], ranks[i] = int32(i), rank(&x.nodes[i])
	}
	slices.SortStableFunc(o, func(a, b int32) int { return cmp.Compare(ranks[a], ranks[b]) })
	x.orders[by] = o
	return o
}

// pick returns the page of nodes that c selects.
func (x *scoped) pick(c *choice) view.NodePage {
	p := view.NodePage{Time: x.view.Time, Offset: c.offset, Nodes: []view.NodeSummary{}}
	var like *view.NodeSummary
	if c.alike != "" {
		i, ok := x.find(c.alike)
		if !ok {
			return p
		}
		like = &x.nodes[i]
	}
	for _, i := range x.order(c.sort) {
		n := &x.nodes[i]
		if like != nil && !n.IsAlike(like) {
			continue
		}
		if c.pool != nil && n.Pool != *c.pool || c.problem && len(n.Problems) == 0 || !strings.Contains(strings.ToLower(n.Name), c.text) {
			continue
		}
		if p.Total++; p.Total > c.offset && len(p.Nodes) < c.limit {
			p.Nodes = append(p.Nodes, *n)
		}
	}
	p.Nodes, _ = view.Fit(p.Nodes, c.limit, bytesPage)
	return p
}

// find returns the index of a node.
func (x *scoped) find(name string) (i int, ok bool) {
	return slices.BinarySearchFunc(x.view.Nodes, name, func(n view.Node, name string) int { return cmp.Compare(n.Name, name) })
}

func (p *Page) serveNodes(w http.ResponseWriter, r *http.Request, v Viewer) {
	c, err := parseChoice(r.URL.Query(), pageNodes, mostNodes)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p.answer(w, r, v, func(x *scoped) (any, error) { return x.pick(&c), nil })
}

var errNoNode = errors.New("there is no node of this name with GPUs that you may see")

func (p *Page) serveNode(w http.ResponseWriter, r *http.Request, v Viewer) {
	name := r.FormValue("name")
	p.answer(w, r, v, func(x *scoped) (any, error) {
		i, ok := x.find(name)
		if !ok {
			return nil, errNoNode
		}
		d := NodeDetail{Time: x.view.Time, MaxAge: x.view.MaxAge, Node: x.view.Nodes[i], Summary: x.nodes[i], Targets: []view.Target{}}
		d.Node.GPUs, d.Omitted.Nodes = view.Fit(d.Node.GPUs, len(d.Node.GPUs), bytesPage-view.BytesTargets)
		var on []view.Target
		for j := range x.view.Targets {
			if t := &x.view.Targets[j]; t.Node == name && t.Kind != view.KindPod {
				on = append(on, *t)
			}
		}
		d.Targets, d.Omitted.Targets = view.Fit(on, len(on), view.BytesTargets)
		return d, nil
	})
}

func (p *Page) serveWorkloads(w http.ResponseWriter, r *http.Request, v Viewer) {
	c, err := parseChoice(r.URL.Query(), pageWorkloads, mostWorkloads)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	p.answer(w, r, v, func(x *scoped) (any, error) {
		page := view.WorkloadPage{Time: x.view.Time, Offset: c.offset}
		var picked []view.Workload
		for i := range x.view.Workloads {
			o := &x.view.Workloads[i]
			if c.problem && o.Problem == "" || !strings.Contains(strings.ToLower(o.Namespace+"/"+o.Name), c.text) {
				continue
			}
			if page.Total++; page.Total > c.offset && len(picked) < c.limit {
				picked = append(picked, *o)
			}
		}
		page.Workloads, _ = view.Fit(picked, c.limit, bytesPage)
		return page, nil
	})
}

// answer sends the result of make for the part that the viewer may see.
func (p *Page) answer(w http.ResponseWriter, r *http.Request, v Viewer, make func(x *scoped) (any, error)) {
	give, ok := p.slot(r.Context(), v)
	if !ok {
		p.refuseAnswer(w, errBusy)
		return
	}
	g := p.renderer.current()
	var x *scoped
	s, err := scopeOf(r.Context(), v, g)
	if err == nil {
		x, err = p.renderer.see(g, &s)
	}
	if err != nil {
		give()
		p.refuseAnswer(w, err)
		return
	}
	made, err := make(x)
	var body []byte
	if err == nil {
		body, err = encode(made, static.AcceptsGzip(r))
	}
	give()
	switch {
	case errors.Is(err, errNoNode), errors.Is(err, errNoGPU):
		writeError(w, http.StatusNotFound, err.Error())
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		describe(w, r)
		setAge(w, g.at)
		p.deliver(w, v, body)
	}
}

// describe sets the headers of encoded JSON.
func describe(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Vary", "Accept-Encoding")
	if static.AcceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
	}
}

// setAge sets the age of an answer of a generation from the time at.
func setAge(w http.ResponseWriter, at time.Time) {
	w.Header().Set("Age", strconv.Itoa(int(max(0, time.Since(at)).Seconds())))
}
