// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// DecisionPage is a part of the decisions that a request selects, newest first.
type DecisionPage struct {
	Time      time.Time    `json:"time"`
	Total     int          `json:"total"`
	Offset    int          `json:"offset"`
	Decisions []view.Event `json:"decisions"`
}

// The sizes of lists of decisions.
const (
	pageDecisions   = 50
	mostDecisions   = 200
	detailDecisions = 50 // of a WorkloadDetail
)

// selectsEvent reports whether the words of a search, in lower case, are all in an event: in
// its namespace/name, its rule, its sentences, or its replicas as in "4→8".
func selectsEvent(e *view.Event, words []string) bool {
	for _, w := range words {
		has := func(s string) bool { return strings.Contains(strings.ToLower(s), w) }
		d := &e.Decision
		if !has(e.Namespace+"/"+e.Name) && !has(string(d.Rule)) && !has(d.Sentence) &&
			!slices.ContainsFunc(d.Steps, func(s view.Step) bool { return has(string(s.Rule)) || has(s.Sentence) }) {
			return false
		}
	}
	return true
}

// serveDecisions sends the decisions that the parameters q, offset and limit select.
func (p *Page) serveDecisions(w http.ResponseWriter, r *http.Request, v Viewer) {
	in := r.URL.Query()
	c, err := parseChoice(url.Values{"q": in["q"], "offset": in["offset"], "limit": in["limit"]}, pageDecisions, mostDecisions)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	words := strings.Fields(c.text)
	p.answer(w, r, v, func(x *scoped) (any, error) {
		page := DecisionPage{Time: x.view.Time, Offset: c.offset, Decisions: []view.Event{}}
		for i := range x.view.Recent {
			e := &x.view.Recent[i]
			if !selectsEvent(e, words) {
				continue
			}
			if page.Total++; page.Total > c.offset && len(page.Decisions) < c.limit {
				page.Decisions = append(page.Decisions, *e)
			}
		}
		page.Decisions, _ = view.Fit(page.Decisions, c.limit, bytesPage)
		return page, nil
	})
}

// serveDetail sends one workload in detail, with the decisions that changed it.
func (p *Page) serveDetail(w http.ResponseWriter, r *http.Request, v Viewer) {
	p.serveWorkload(w, r, v, func(namespace, name string) (any, bool, error) {
		d, known := p.source.Workload(namespace, name)
		if !known {
			return nil, false, nil
		}
		d.Decisions = []view.Event{}
		recent := p.renderer.current().view.Recent
		for i := range recent {
			if e := &recent[i]; e.Namespace == namespace && e.Name == name && len(d.Decisions) < detailDecisions {
				d.Decisions = append(d.Decisions, *e)
			}
		}
		d.Decisions, _ = view.Fit(d.Decisions, detailDecisions, bytesPage/2)
		return d, true, nil
	})
}

var errNoGPU = errors.New("there is no GPU of this node and UUID that you may see")

// serveDevice sends one device in detail, if the viewer sees it in the view. Its owners and
// their times are those that the view shows to the viewer.
func (p *Page) serveDevice(w http.ResponseWriter, r *http.Request, v Viewer) {
	node, uuid := r.FormValue("node"), r.FormValue("uuid")
	p.answer(w, r, v, func(x *scoped) (any, error) {
		g := x.gpu(node, uuid)
		if g == nil {
			return nil, errNoGPU
		}
		d, ok := p.source.Device(node, uuid)
		if !ok {
			return nil, errNoGPU
		}
		if x.view.Namespaces != nil && !slices.Equal(d.GPU.Owners, g.Owners) {
			// Another namespace's pod has a share of it, or holds it since the view was made.
			gone := func(o view.Owner) bool { return !slices.Contains(d.GPU.Owners, o) }
			if slices.ContainsFunc(g.Owners, gone) {
				return nil, errNoGPU
			}
			for i := range d.Fields {
				d.Fields[i].Past = nil
			}
			d.GPU = *g
		}
		d.GPU.Lost = g.Lost
		d.State = x.view.State(&d.GPU)
		return d, nil
	})
}

// gpu returns a GPU that the viewer sees; nil: there is none.
func (x *scoped) gpu(node, uuid string) *view.GPU {
	at, ok := slices.BinarySearchFunc(x.view.Nodes, node, func(n view.Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	gpus := x.view.Nodes[at].GPUs
	if i := slices.IndexFunc(gpus, func(g view.GPU) bool { return g.UUID == uuid }); i >= 0 {
		return &gpus[i]
	}
	return nil
}
