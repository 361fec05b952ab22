// SPDX-License-Identifier: Apache-2.0

package series

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// targetBytes is the size of a Target with its labels, the headers of its maps and its
// entry in the store. A map takes about twice its entries.
const targetBytes = int64(unsafe.Sizeof(Target{})+unsafe.Sizeof(TargetLabels{})) + 4*48 + 2*24

// TextBytes returns the memory of a string of so many bytes: the allocator rounds up
// to a multiple of 16.
func TextBytes(length int) int64 { return int64(length+15) &^ 15 }

// group is targets with a common share of the memory: the pods of a namespace. Each
// exporter is a group of its own.
type group struct {
	ledger.Group
	targets int          // guarded by Store.mu
	paying  atomic.Int32 // series of exporters that it pays for
}

// account is what a store counts for a target.
type account struct {
	store  *Store
	group  *group       // changed under Store.mu and the target's mu; read under one of them
	bytes  atomic.Int64 // in the ledger; changed under the target's mu
	rings  int64        // the part of them that is samples
	series int

	paid      payers
	paidBytes atomic.Int64 // of bytes, what others pay; changed under the target's mu
}

// reserve charges the most that an operation can cost, before it runs. set returns the
// excess.
func (a *account) reserve(c ledger.Cost) ledger.Verdict {
	v := a.store.memory.Take(&a.group.Group, a.bytes.Load(), c)
	if v == ledger.Granted {
		a.bytes.Add(c.Peak)
	}
	return v
}

// set corrects the account to what the target has.
func (a *account) set(bytes, rings int64, series int) {
	a.store.memory.Adjust(&a.group.Group, bytes-a.bytes.Load(), rings-a.rings)
	a.store.series.Add(int64(series - a.series))
	a.bytes.Store(bytes)
	a.rings, a.series = rings, series
}

// move moves the account to another group.
func (a *account) move(g *group) {
	n := a.bytes.Load() - a.paidBytes.Load()
	a.group.Add(-n)
	a.group = g
	g.Add(n)
}

// settle sets the target's account to its actual size. The caller holds t.mu.
func (t *Target) settle() {
	if t.closed == nil {
		t.settlePayers()
		t.account.set(t.size(), t.columns.ring.Bytes(), t.columns.live)
	}
}

// size returns the target's bytes. A test compares it with a full count.
func (t *Target) size() int64 {
	return targetBytes + int64(len(t.name)) + t.writer + t.columns.size() + t.devices.size() + t.holdings.size() + t.exposed.size() + t.failures.Bytes() +
		int64(t.account.paid.peak)*payerEntry
}

// Account sets the bytes that the target's writer holds for it: the connection,
// buffers, and what it remembers of the last page. It returns false if the memory
// limit refuses an increase. The writer then frees what it can and calls Account
// again.
func (t *Target) Account(bytes int64) (ok bool) {
	t.store.attempt(func(bool) (blocked bool) {
		ok, blocked = t.accountWriter(bytes)
		return blocked
	})
	return ok
}

func (t *Target) accountWriter(bytes int64) (ok, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return errors.Is(t.closed, ErrDropped), false
	}
	if bytes > t.writer {
		if v := t.account.reserve(ledger.Plain(bytes - t.writer)); v != ledger.Granted {
			t.refuse(RefusedWriter, 1)
			return false, v == ledger.NoRoom
		}
	}
	t.writer = bytes
	t.settle()
	return true, false
}

// attempt runs an operation that may be blocked until other targets free memory. It then
// runs it for the last time.
func (s *Store) attempt(operation func(last bool) (blocked bool)) {
	if operation(false) {
		s.rebalance()
		operation(true)
	}
	s.rebalanceIfDue()
}

// rebalance computes the shares, and shrinks the targets that exceed theirs. The caller
// holds no target's mu.
func (s *Store) rebalance() {
	s.rebalancing.Lock()
	defer s.rebalancing.Unlock()
	if !s.memory.Begin() {
		return
	}
	targets, accounts := s.accounts()
	shares := s.memory.Divide(accounts, s.cfg.honest())
	for i, t := range targets {
		if most := shares.Of(&accounts[i]); accounts[i].Bytes > most {
			t.shrink(most + t.account.paidBytes.Load())
		}
	}
	s.memory.Done()
}

// rebalanceIfDue runs rebalance if growth since the last one requires it.
func (s *Store) rebalanceIfDue() {
	if s.memory.IsDue() {
		s.rebalance()
	}
}

// accounts returns the targets with their sizes, and after those what others pay of them.
func (s *Store) accounts() ([]*Target, []ledger.Account) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	targets := make([]*Target, 0, len(s.targets))
	accounts := make([]ledger.Account, 0, len(s.targets))
	for _, t := range s.targets {
		targets = append(targets, t)
		accounts = append(accounts, ledger.Account{Group: &t.account.group.Group, Bytes: t.account.bytes.Load() - t.account.paidBytes.Load()})
	}
	for _, t := range targets {
		accounts = t.paidAccounts(accounts)
	}
	return targets, accounts
}
