// SPDX-License-Identifier: Apache-2.0

package view

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
)

// A GPU-hour costs what a price list says, in USD: the reader's own list or, without one, the
// controller's (--gpu-price), whose prices are GPU.USDPerHour. A MIG instance costs its share of the
// GPU (price.Part), and a GPU that several pods hold costs each its share. What has no price is
// counted beside a sum, which lacks it.

// PriceBy returns the price of GPUs of a node pool and a model by the reader's own list; nil: the GPU has none.
func PriceBy(own *price.Table, pool, model string) func(g *GPU) *float64 {
	if !own.Has() {
		return func(g *GPU) *float64 { return g.USDPerHour }
	}
	whole, ok := own.Of(pool, model)
	if !ok {
		return func(*GPU) *float64 { return nil }
	}
	return func(g *GPU) *float64 { return price.Part(g.UUID, g.Share, model, &whole) }
}

// Cost is what GPUs cost an hour.
type Cost struct {
	Held     float64 `json:"usdPerHour"`             // of the allocated GPUs that have a price
	Idle     float64 `json:"idleHeldUSDPerHour"`     // of these, of the idle-held ones
	Unpriced int     `json:"unpricedGPUs,omitempty"` // allocated GPUs without a price, which the sums lack
	// IdleUnpriced are the idle-held ones of these.
	IdleUnpriced int `json:"unpricedIdleHeldGPUs,omitempty"`
	// Free is what the free GPUs cost that have a price: they are not in Held. FreeUnpriced are the others.
	Free         float64 `json:"freeUSDPerHour,omitempty"`
	FreeUnpriced int     `json:"unpricedFreeGPUs,omitempty"`
}

// count adds a GPU that is allocated or free, with its price; nil: it has none.
func (c *Cost) count(g *GPU, state State, usd *float64) {
	to := func(sum *float64, unpriced *int) {
		if usd == nil {
			*unpriced++
		} else {
			*sum += *usd
		}
	}
	switch {
	case state == Free:
		to(&c.Free, &c.FreeUnpriced)
	case len(g.Owners) > 0:
		to(&c.Held, &c.Unpriced)
	}
	if state == Idle {
		to(&c.Idle, &c.IdleUnpriced)
	}
}

// CostBy returns what the fleet's GPUs cost by the reader's own list. If the view does not have all
// of them, they must all have one price. nil: it is not known, or none has a price.
func (v *View) CostBy(own *price.Table) *Cost {
	c := &v.Fleet
	if !own.Has() {
		return c.Cost
	}
	if v.Omitted.Nodes > 0 {
		if usd, uniform := own.All(); uniform {
			return &Cost{Held: usd * float64(c.Allocated), Idle: usd * float64(c.Idle), Free: usd * float64(c.Free)}
		}
		return nil
	}
	var sum Cost
	for i := range v.Nodes {
		n := &v.Nodes[i]
		usd := PriceBy(own, n.Pool, n.Model)
		for j := range n.GPUs {
			sum.count(&n.GPUs[j], v.State(&n.GPUs[j]), usd(&n.GPUs[j]))
		}
	}
	return sum.known()
}

// known returns the cost; nil: no GPU has a price. Prices are above 0.
func (c *Cost) known() *Cost {
	if c.Held+c.Free == 0 {
		return nil
	}
	known := *c
	return &known
}

func (c *Cost) add(o *Cost) {
	c.Held += o.Held
	c.Idle += o.Idle
	c.Unpriced += o.Unpriced
	c.IdleUnpriced += o.IdleUnpriced
	c.Free += o.Free
	c.FreeUnpriced += o.FreeUnpriced
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
	known           bool    // sinceIdle is, of some
}

// Add adds a share of a GPU with a price (nil: it has none) that has been idle-held for a time (below 0:
// not known), or for longer if atLeast is set.
func (c *IdleCost) Add(usd *float64, share float64, idle time.Duration, atLeast bool) {
	if c.AtLeast = c.AtLeast || atLeast || usd == nil; usd == nil {
		c.Unpriced += share
		return
	}
	c.cost += share * *usd // prices are above 0
	if idle >= 0 {
		c.sinceIdle += share * *usd * idle.Hours()
		c.known = true
	}
}

// AddAll adds what was added to another cost.
func (c *IdleCost) AddAll(o *IdleCost) {
	c.cost += o.cost
	c.Unpriced += o.Unpriced
	c.sinceIdle += o.sinceIdle
	c.known, c.AtLeast = c.known || o.known, c.AtLeast || o.AtLeast
}

// Sum returns what was added up.
func (c *IdleCost) Sum() IdleCost {
	out := IdleCost{Unpriced: c.Unpriced}
	if c.cost > 0 {
		out.Cost = &[]float64{c.cost}[0]
	}
	if c.known {
		out.SinceIdle, out.AtLeast = &[]float64{c.sinceIdle}[0], c.AtLeast
	}
	return out
}

// IdleFor returns for how long a GPU has been idle-held, as the controller knows it; below 0: not
// known. It may have been idle for longer if atLeast is set.
func (g *GPU) IdleFor(now time.Time) (d time.Duration, atLeast bool) {
	if g.IdleSince.IsZero() {
		return -1, true
	}
	return max(0, now.Sub(g.IdleSince)), g.IdleAtLeast
}
