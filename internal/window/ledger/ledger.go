// SPDX-License-Identifier: Apache-2.0

// Package ledger accounts for the memory of many targets under one limit, in bytes. If
// the limit does not suffice, it divides it: the largest shrink to the same size.
package ledger

import (
	"math"
	"sync/atomic"
)

// Cost is the memory of an operation in bytes: Peak while it runs, and Net, the
// increase after it.
type Cost struct{ Peak, Net int64 }

// Plain returns the cost of an operation that takes no more while it runs.
func Plain(n int64) Cost { return Cost{Peak: n, Net: n} }

// Add returns the sum of two costs.
func (c Cost) Add(o Cost) Cost { return Cost{Peak: c.Peak + o.Peak, Net: c.Net + o.Net} }

// Verdict is the answer to a request for memory.
type Verdict uint8

// The verdicts.
const (
	Granted   Verdict = iota
	OverShare         // refused: the target or its group would exceed its share
	NoRoom            // refused: other targets must free memory first
)

// Group is targets with a common share of the memory.
type Group struct{ bytes atomic.Int64 }

// Bytes returns the memory of the group's targets.
func (g *Group) Bytes() int64 { return g.bytes.Load() }

// Add adds bytes to the group, as those of a target that joins it. Negative bytes are
// those of a target that leaves it.
func (g *Group) Add(bytes int64) { g.bytes.Add(bytes) }

// Ledger is the account of the memory of all targets, in bytes. Its methods are safe
// for concurrent use, except for Begin, Divide and Done, which one goroutine at a time
// may call.
type Ledger struct {
	limit, soft  int64        // above soft, a target may grow only up to its share
	total, rings atomic.Int64 // all, and the rings' part; total never exceeds limit
	targetShare  atomic.Int64 // of one target; noLevel: no limit
	groupShare   atomic.Int64 // of one group; noLevel: no limit
	moved        atomic.Int64 // bytes granted since the shares were last computed
	due          atomic.Bool  // the shares must be computed again
}

const noLevel = math.MaxInt64

// New returns a ledger with a limit in bytes.
func New(limit int64) *Ledger {
	l := &Ledger{limit: limit, soft: limit - limit/8}
	l.targetShare.Store(noLevel)
	l.groupShare.Store(noLevel)
	return l
}

// Limit returns the limit.
func (l *Ledger) Limit() int64 { return l.limit }

// Total returns the memory of all targets.
func (l *Ledger) Total() int64 { return l.total.Load() }

// Rings returns the part of Total that is samples.
func (l *Ledger) Rings() int64 { return l.rings.Load() }

// Take charges c to a target of group g that has own bytes already.
func (l *Ledger) Take(g *Group, own int64, c Cost) Verdict {
	for {
		total := l.total.Load()
		if total+c.Net > l.soft {
			if l.moved.Load() > l.limit/64 {
				l.due.Store(true)
			}
			if own+c.Net > l.targetShare.Load() || g.bytes.Load()+c.Net > l.groupShare.Load() {
				return OverShare
			}
		}
		if total+c.Peak > l.limit {
			return NoRoom
		}
		if l.total.CompareAndSwap(total, total+c.Peak) {
			break
		}
	}
	g.bytes.Add(c.Peak)
	l.moved.Add(max(c.Net, 0))
	return Granted
}

// Adjust corrects the account of a target of group g by a difference, and the rings'
// part of it.
func (l *Ledger) Adjust(g *Group, bytes, rings int64) {
	l.total.Add(bytes)
	g.bytes.Add(bytes)
	l.rings.Add(rings)
}
