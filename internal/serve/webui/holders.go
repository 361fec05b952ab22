// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"maps"
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
	IdleCost
	Holders []Holder `json:"holders"`
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
	IdleAtLeast bool      `json:"idleAtLeast,omitempty"` // they may have been idle for longer
	IdleCost
}

// IdleCost is what idle-held GPUs cost.
type IdleCost struct {
	// Cost is the USD an hour of those that have a price; nil: none has. Unpriced is the number of the others,
	// which it lacks.
	Cost     *float64 `json:"usdPerHour,omitempty"`
	Unpriced float64  `json:"unpricedGPUs,omitempty"`
	// SinceIdle is the USD that they have cost since they are idle-held, by the present prices; nil: not known of
	// any. AtLeast means that it is a lower bound: some have no price, or may have been idle for longer.
	SinceIdle *float64 `json:"usdSinceIdle,omitempty"`
	AtLeast   bool     `json:"usdSinceIdleAtLeast,omitempty"`

	cost, sinceIdle float64 // while they are added up
}

// add adds a share of a GPU with a price; nil: it has none.
func (c *IdleCost) add(g *view.GPU, usd *float64, share float64, now time.Time) {
	if c.AtLeast = c.AtLeast || usd == nil || g.IdleSince.IsZero() || g.IdleAtLeast; usd == nil {
		c.Unpriced += share
		return
	}
	c.cost += share * *usd // prices are above 0
	if !g.IdleSince.IsZero() {
		c.sinceIdle += share * *usd * max(0, now.Sub(g.IdleSince)).Hours()
		c.SinceIdle = &c.sinceIdle
	}
}

// sum sets what was added up.
func (c *IdleCost) sum() {
	if c.cost > 0 {
		cost := c.cost
		c.Cost = &cost
	}
	if c.SinceIdle == nil {
		c.AtLeast = false
		return
	}
	sinceIdle := c.sinceIdle
	c.SinceIdle = &sinceIdle
}

const pageHolders = 100

// idleHolders returns the pods that hold idle GPUs, with their costs by a viewer's own prices or else by the
// controller's. It adds them up once for all viewers with the same rights and prices.
func (x *scoped) idleHolders(prices, own *price.Table) HolderPage {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := own.String()
	p := x.held[key]
	if p != nil {
		return *p
	}
	if own.Has() {
		prices = own
	} else {
		own = nil
	}
	p = x.holders(prices.Has(), own)
	p.Price, _ = prices.All()
	if p.Prices = key; len(x.held) < keptHolders {
		x.held[key] = p
	}
	return *p
}

// keptHolders is how many lists are kept, by prices.
const keptHolders = 8

// holders returns the pods that hold idle GPUs, with their costs by a price list; nil: by the controller's.
func (x *scoped) holders(priced bool, own *price.Table) *HolderPage {
	p := &HolderPage{Time: x.view.Time}
	byPod := map[view.Owner]*Holder{}
	for i := range x.view.Nodes {
		if x.nodes[i].Idle == 0 {
			continue
		}
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
					h.add(g, usd, share, x.view.Time)
					p.add(g, usd, share, x.view.Time)
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
	all := slices.AppendSeq(make([]*Holder, 0, len(byPod)), maps.Values(byPod))
	for _, h := range all {
		p.GPUs += h.GPUs
	}
	slices.SortFunc(all, func(a, b *Holder) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), a.IdleSince.Compare(b.IdleSince), a.HeldSince.Compare(b.HeldSince), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	first := make([]Holder, 0, pageHolders)
	for _, h := range all[:min(len(all), pageHolders)] {
		h.sum()
		first = append(first, *h)
	}
	p.sum()
	p.Holders, _ = view.Fit(first, pageHolders, bytesPage)
	return p
}

func (p *Page) serveHolders(w http.ResponseWriter, r *http.Request, v Viewer) {
	own, err := price.Parse(r.URL.Query().Get("price"))
	if err != nil {
		writeError(w, http.StatusBadRequest, "price: "+err.Error())
		return
	}
	p.answer(w, r, v, func(x *scoped) (any, error) { return x.idleHolders(&p.Prices, &own), nil })
}
