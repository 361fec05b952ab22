// SPDX-License-Identifier: Apache-2.0

package series

import (
	"maps"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// payers are the series of an exporter that namespaces pay for: only objects of theirs name what they show. The
// zero payers are none.
type payers struct {
	of     map[uint32]*group      // by the id of the series
	shares map[*group]*payerShare // of the target's bytes
	peak   int                    // the most entries of of since it was empty
}

// payerShare is what a group pays of a target.
type payerShare struct {
	series int
	bytes  int64 // in the group's account, and not in that of the target's group
}

const payerEntry = 2 * (8 + 8)

// payer returns the group of a namespace that will pay for a series, and holds it until the series is freed or
// letGo; nil for no namespace.
func (s *Store) payer(namespace string) *group {
	if namespace == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[namespace]
	if g == nil {
		s.forgetPayers()
		g = &group{}
		s.groups[namespace] = g
	}
	g.paying.Add(1)
	return g
}

// letGo undoes Store.payer.
func (g *group) letGo() {
	if g != nil {
		g.paying.Add(-1)
	}
}

// forgetPayers drops the groups without targets that pay for nothing. The caller holds s.mu.
func (s *Store) forgetPayers() {
	maps.DeleteFunc(s.groups, func(_ string, g *group) bool { return g.targets == 0 && g.paying.Load() == 0 })
}

// reserveFor is reserve, within the share of who pays; nil: the target's group. settle moves the bytes.
func (a *account) reserveFor(payer *group, c ledger.Cost) ledger.Verdict {
	if payer == nil {
		return a.reserve(c)
	}
	v := a.store.memory.Take(&payer.Group, 0, c.Add(ledger.Plain(payerEntry)))
	if v == ledger.Granted {
		peak := c.Add(ledger.Plain(payerEntry)).Peak
		payer.Add(-peak)
		a.group.Add(peak)
		a.bytes.Add(peak)
	}
	return v
}

// add has a group pay for a series; nil: none does.
func (p *payers) add(id uint32, payer *group) {
	if payer == nil {
		return
	}
	if p.of == nil {
		p.of, p.shares = map[uint32]*group{}, map[*group]*payerShare{}
	}
	p.of[id] = payer
	p.peak = max(p.peak, len(p.of))
	if p.shares[payer] == nil {
		p.shares[payer] = &payerShare{}
	}
	p.shares[payer].series++
	payer.paying.Add(1)
}

// drop undoes add.
func (p *payers) drop(id uint32) {
	g := p.of[id]
	delete(p.of, id)
	p.shares[g].series--
	g.letGo()
}

// unpayFreed drops the payers of n series that were freed.
func (t *Target) unpayFreed(n int) {
	if n == 0 {
		return
	}
	for id := range t.account.paid.of {
		if !t.columns.series[id].live {
			t.account.paid.drop(id)
		}
	}
}

// settlePayers moves what the payers' series take from the account of the target's group to theirs.
func (t *Target) settlePayers() {
	a := &t.account
	if a.paid.of == nil {
		return
	}
	r := &t.columns.ring
	each := seriesBytes + fieldBytes + payerEntry + int64(r.Slots())*(r.PerSlot()-8)/int64(max(t.columns.live, 1))
	sum := int64(0)
	for g, x := range a.paid.shares {
		bytes := int64(x.series) * each
		g.Add(bytes - x.bytes)
		a.group.Add(x.bytes - bytes)
		x.bytes = bytes
		sum += bytes
		if x.series == 0 {
			delete(a.paid.shares, g)
		}
	}
	a.paidBytes.Store(sum)
	if len(a.paid.of) == 0 {
		a.paid = payers{}
	}
}

// dropPayers has the target's group pay for all series.
func (t *Target) dropPayers() {
	for id := range t.account.paid.of {
		t.account.paid.drop(id)
	}
	t.settlePayers()
}

// paidAccounts appends the accounts of those who pay for series of the target.
func (t *Target) paidAccounts(dst []ledger.Account) []ledger.Account {
	if t.account.paidBytes.Load() == 0 {
		return dst
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	for g, x := range t.account.paid.shares {
		dst = append(dst, ledger.Account{Group: &g.Group, Bytes: x.bytes})
	}
	return dst
}
