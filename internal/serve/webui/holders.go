// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// HolderPage are the pods that hold idle GPUs, those with the most first.
type HolderPage struct {
	Time  time.Time `json:"time"`
	Total int       `json:"total"`                   // number of such pods
	GPUs  float64   `json:"gpus"`                    // idle-held GPUs of all of them
	Price float64   `json:"usdPerGPUHour,omitempty"` // if there is one for all GPUs
	// Prices is the price list of the request, by which the costs are; empty: they are the controller's.
	Prices string `json:"prices,omitempty"`
	// Cost is the USD an hour of the idle-held GPUs that have a price; nil: none has. Unpriced is the
	// number of the others, which it lacks.
	Cost     *float64 `json:"usdPerHour,omitempty"`
	Unpriced float64  `json:"unpricedGPUs,omitempty"`
	Holders  []Holder `json:"holders"`
}

// Holder is a pod that holds idle GPUs.
type Holder struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Node      string    `json:"node"`
	GPUs      float64   `json:"gpus"` // idle-held; of a GPU that several pods hold, each has its share
	HeldSince time.Time `json:"heldSince,omitzero"`
	// IdleSince is since when all of these GPUs are idle-held, as of view.GPU; zero: it is not known of all of them.
	IdleSince   time.Time `json:"idleSince,omitzero"`
	IdleAtLeast bool      `json:"idleAtLeast,omitempty"`  // they may have been idle for longer
	Cost        *float64  `json:"usdPerHour,omitempty"`   // as in HolderPage
	Unpriced    float64   `json:"unpricedGPUs,omitempty"` // as in HolderPage
}

// charge adds a share of a GPU to a cost; nil: no GPU so far has a price.
func charge(cost **float64, unpriced *float64, usd *float64, share float64) {
	switch {
	case usd == nil:
		*unpriced += share
	case *cost == nil:
		first := share * *usd
		*cost = &first
	default:
		**cost += share * *usd
	}
}

const pageHolders = 100

// holders returns the pods that hold idle GPUs, with their costs by a price list; nil: by the controller's.
func (x *scoped) holders(priced bool, own *price.Table) HolderPage {
	p := HolderPage{Time: x.view.Time}
	byPod := map[view.Owner]*Holder{}
	for i := range x.view.Nodes {
		n := &x.view.Nodes[i]
		whole, known := 0.0, false
		if own != nil {
			whole, known = own.Of(n.Pool, n.Model)
		}
		for j := range n.GPUs {
			g := &n.GPUs[j]
			if x.view.State(g) != view.Idle {
				continue
			}
			usd := g.USDPerHour
			if own != nil {
				usd = nil
			}
			if known {
				usd = g.Part(whole, n.Model)
			}
			for _, o := range g.Owners {
				key := view.Owner{Namespace: o.Namespace, Pod: o.Pod}
				h := byPod[key]
				if h == nil {
					h = &Holder{Namespace: o.Namespace, Pod: o.Pod, Node: n.Name, HeldSince: g.HeldSince, IdleSince: g.IdleSince, IdleAtLeast: g.IdleAtLeast}
					byPod[key] = h
				}
				share := 1 / float64(len(g.Owners))
				h.GPUs += share
				if priced {
					charge(&h.Cost, &h.Unpriced, usd, share)
					charge(&p.Cost, &p.Unpriced, usd, share)
				}
				if g.HeldSince.Before(h.HeldSince) {
					h.HeldSince = g.HeldSince
				}
				if unknown := g.IdleSince.IsZero() || h.IdleSince.IsZero(); unknown || g.IdleSince.After(h.IdleSince) {
					h.IdleSince, h.IdleAtLeast = g.IdleSince, g.IdleAtLeast
					if unknown {
						h.IdleSince, h.IdleAtLeast = time.Time{}, false
					}
				}
			}
		}
	}
	p.Total = len(byPod)
	all := make([]Holder, 0, len(byPod))
	for _, h := range byPod {
		p.GPUs += h.GPUs
		all = append(all, *h)
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), a.IdleSince.Compare(b.IdleSince), a.HeldSince.Compare(b.HeldSince), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	p.Holders, _ = view.Fit(all, pageHolders, bytesPage)
	return p
}

func (p *Page) serveHolders(w http.ResponseWriter, r *http.Request, v Viewer) {
	own, err := price.Parse(r.URL.Query().Get("price"))
	if err != nil {
		writeError(w, http.StatusBadRequest, "price: "+err.Error())
		return
	}
	p.answer(w, r, v, func(x *scoped) (any, error) {
		prices, used := &p.Prices, (*price.Table)(nil)
		if own.Has() {
			prices, used = &own, &own
		}
		h := x.holders(prices.Has(), used)
		h.Price, _ = prices.All()
		h.Prices = own.String()
		return h, nil
	})
}
