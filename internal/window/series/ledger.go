// SPDX-License-Identifier: Apache-2.0

package series

import (
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// Sizes in bytes. A map takes about twice its entries.
const (
	targetBytes  = int64(unsafe.Sizeof(Target{})) + 4*48 + 2*24 // with the headers of its maps and its entry in the store
	seriesBytes  = int64(unsafe.Sizeof(seriesState{})) + 4      // with its place in the list of free ids
	fieldBytes   = int64(unsafe.Sizeof(deviceField{}))
	shareBytes   = int64(unsafe.Sizeof(deviceShare{}))
	spanSize     = int64(unsafe.Sizeof(span{}))
	ownerSize    = int64(unsafe.Sizeof(gpu.Owner{}))
	deviceBytes  = int64(unsafe.Sizeof(device{})) + 2*8 // with its place in the list of measured ones
	deviceEntry  = 2 * (16 + 8)
	idEntry      = 2 * (16 + 4)
	holdingBytes = int64(unsafe.Sizeof(holding{})) + indexBytes
	holdingEntry = 2 * (32 + 8)
	indexBytes   = int64(unsafe.Sizeof(podEntry{})+unsafe.Sizeof(holder{})) + 2*(32+8)
)

// group is targets with a common share of the memory: the pods of a namespace. Each
// exporter is a group of its own.
type group struct {
	ledger.Group
	targets int // guarded by Store.mu
}

// reserve charges the most that an operation can cost, before it runs. settle returns
// the excess. The caller holds t.mu for both.
func (t *Target) reserve(c ledger.Cost) ledger.Verdict {
	v := t.store.memory.Take(&t.group.Group, t.charged.Load(), c)
	if v == ledger.Granted {
		t.charged.Add(c.Peak)
	}
	return v
}

// settle sets the target's account to its actual size.
func (t *Target) settle() {
	if t.closed {
		return
	}
	t.charge(t.size(), t.ring.Bytes())
}

// release clears the account of a closed target.
func (t *Target) release() {
	t.charge(0, 0)
	t.store.limited.remove(t)
}

func (t *Target) charge(bytes, rings int64) {
	t.store.memory.Adjust(&t.group.Group, bytes-t.charged.Load(), rings-t.rings)
	t.charged.Store(bytes)
	t.rings = rings
}

// size returns the target's bytes. It sums counters that every change updates; a test
// compares it with a full count.
func (t *Target) size() int64 {
	return targetBytes + int64(len(t.name)) + t.writer + t.ring.Bytes() + t.keys + t.lists + t.exposed.bytes + t.failures.Bytes() +
		int64(cap(t.series))*seriesBytes +
		int64(len(t.devices))*deviceBytes + int64(t.devPeak)*deviceEntry +
		int64(t.idsPeak)*idEntry +
		int64(len(t.pods))*holdingBytes + int64(t.podsPeak)*holdingEntry
}

// listBytes returns the bytes of the device's lists of series.
func (d *device) listBytes() int64 {
	return int64(cap(d.fields))*fieldBytes + int64(cap(d.shares))*shareBytes
}

func ownerBytes(list []gpu.Owner) int64 {
	n := int64(cap(list)) * ownerSize
	for i := range list {
		o := &list[i]
		n += TextBytes(len(o.Pod)) + TextBytes(len(o.Replica)) // most owners share the strings of the other two
	}
	return n
}

// TextBytes returns the memory of a string of so many bytes: the allocator rounds up
// to a multiple of 16.
func TextBytes(length int) int64 { return int64(length+15) &^ 15 }

func spanBytes(h *holding) int64 { return int64(cap(h.spans)) * spanSize }

func deviceCost(uuid string) ledger.Cost {
	return ledger.Plain(deviceBytes + deviceEntry + TextBytes(len(uuid)))
}

// costOfSeries returns the most that a new series can cost.
func (t *Target) costOfSeries(k Key) ledger.Cost {
	c := ledger.Plain(TextBytes(max(len(k.Metric)+len(k.Pod), lineKey)) + idEntry + 8)
	c = c.Add(t.ring.CostOfColumn(k.width()))
	if n := int64(cap(t.series)); len(t.free) == 0 && len(t.series) == cap(t.series) {
		c = c.Add(ledger.Cost{Peak: (2*n + 8) * seriesBytes, Net: (n + 8) * seriesBytes})
	}
	if k.Device == "" {
		return c
	}
	d := t.devices[k.Device]
	if d == nil {
		return c.Add(deviceCost(k.Device)).Add(ledger.Plain(8 * (shareBytes + fieldBytes)))
	}
	if k.Pod != "" && len(d.shares) == cap(d.shares) {
		return c.Add(ledger.Plain(int64(2*cap(d.shares)+8) * shareBytes))
	}
	if k.Pod == "" && len(d.fields) == cap(d.fields) {
		return c.Add(ledger.Plain(int64(2*cap(d.fields)+8) * fieldBytes))
	}
	return c
}

// costOf returns the most that changes of owners can cost.
func (t *Target) costOf(changes []ownerChange) ledger.Cost {
	n := int64(0)
	for i := range changes {
		c := &changes[i]
		n += ownerBytes(c.owners) - min(ownerBytes(c.device.owners), ownerBytes(c.owners))
		gpu.EachPod(c.device.owners, c.owners, func(namespace, pod string, before, after bool) {
			t.steps++
			if before || !after {
				return
			}
			if t.pods[podKey{namespace, pod}] == nil {
				n += holdingBytes + holdingEntry + TextBytes(len(pod)) + 2*spanSize
			} else {
				n += 3 * spanSize
			}
		})
	}
	// append doubles a list of up to 256 entries.
	for i := range changes {
		n += ownerSize * int64(len(changes[i].owners))
	}
	return ledger.Plain(n + 1024)
}

// Account sets the bytes that the target's writer holds for it: the connection,
// buffers, and what it remembers of the last page. It returns false if the memory
// limit refuses an increase. The writer then frees what it can and calls Account
// again.
func (t *Target) Account(bytes int64) bool {
	ok, blocked := t.account(bytes)
	if blocked {
		t.store.rebalance()
		ok, _ = t.account(bytes)
	}
	t.store.rebalanceIfDue()
	return ok
}

func (t *Target) account(bytes int64) (ok, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return !t.noMemory, false
	}
	if bytes > t.writer {
		if v := t.reserve(ledger.Plain(bytes - t.writer)); v != ledger.Granted {
			t.refuse(RefusedWriter, 1)
			return false, v == ledger.NoRoom
		}
	}
	t.writer = bytes
	t.settle()
	return true, false
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
			t.shrink(most)
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

// accounts returns the targets with their sizes.
func (s *Store) accounts() ([]*Target, []ledger.Account) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	targets := make([]*Target, 0, len(s.targets))
	accounts := make([]ledger.Account, 0, len(s.targets))
	for _, t := range s.targets {
		targets = append(targets, t)
		accounts = append(accounts, ledger.Account{Group: &t.labelGroup.Group, Bytes: t.charged.Load()})
	}
	return targets, accounts
}
