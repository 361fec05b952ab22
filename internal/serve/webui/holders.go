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

const pageHolders = 100

// idleHolders returns the pods that hold idle GPUs, with their costs by a viewer's own prices or else by the
// controller's. It adds them up once for all viewers with the same rights and prices.
func (x *scoped) idleHolders(prices, own *price.Table) view.HolderPage {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := own.String()
	p := x.held[key]
	if p != nil {
		return *p
	}
	if own.Has() {
		prices = own
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

// holders returns the pods that hold idle GPUs, with their costs by the viewer's own price list, as of view.PriceBy.
func (x *scoped) holders(priced bool, own *price.Table) *view.HolderPage {
	p := &view.HolderPage{Time: x.view.Time}
	byPod := map[view.Owner]*view.Holder{}
	for i := range x.view.Nodes {
		if x.nodes[i].Idle == 0 {
			continue
		}
		n := &x.view.Nodes[i]
		priceOf := view.PriceBy(own, n.Pool, n.Model)
		for j := range n.GPUs {
			g := &n.GPUs[j]
			if x.view.State(g) != view.Idle {
				continue
			}
			usd := priceOf(g)
			idle, atLeast := g.IdleFor(x.view.Time)
			for _, o := range g.Owners {
				key := view.Owner{Namespace: o.Namespace, Pod: o.Pod}
				h := byPod[key]
				if h == nil {
					h = &view.Holder{Namespace: o.Namespace, Pod: o.Pod, Node: n.Name, HeldSince: g.HeldSince, IdleSince: g.IdleSince, IdleAtLeast: g.IdleAtLeast}
					byPod[key] = h
				}
				share := 1 / float64(len(g.Owners))
				h.GPUs += share
				if priced {
					h.Add(usd, share, idle, atLeast)
					p.Add(usd, share, idle, atLeast)
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
	all := slices.AppendSeq(make([]*view.Holder, 0, len(byPod)), maps.Values(byPod))
	for _, h := range all {
		p.GPUs += h.GPUs
	}
	slices.SortFunc(all, func(a, b *view.Holder) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), a.IdleSince.Compare(b.IdleSince), a.HeldSince.Compare(b.HeldSince), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
	})
	first := make([]view.Holder, 0, pageHolders)
	for _, h := range all[:min(len(all), pageHolders)] {
		h.IdleCost = h.Sum()
		first = append(first, *h)
	}
	p.IdleCost = p.Sum()
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
