// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"math"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Sizes in bytes. A map takes about twice its entries.
const (
	targetBytes  = int64(unsafe.Sizeof(Target{})) + 4*48 + 2*24 // with the headers of its maps and its entry in the store
	seriesBytes  = int64(unsafe.Sizeof(seriesState{})) + 4      // with its place in the list of free ids
	fieldBytes   = int64(unsafe.Sizeof(deviceField{}))
	shareBytes   = int64(unsafe.Sizeof(deviceShare{}))
	spanSize     = int64(unsafe.Sizeof(span{}))
	ownerSize    = int64(unsafe.Sizeof(gpu.Owner{}))
	deviceBytes  = int64(unsafe.Sizeof(device{}))
	deviceEntry  = 2 * (16 + 8)
	idEntry      = 2 * (16 + 4)
	holdingBytes = int64(unsafe.Sizeof(holding{})) + indexBytes
	holdingEntry = 2 * (32 + 8)
	indexBytes   = int64(unsafe.Sizeof(podEntry{})+unsafe.Sizeof(holder{})) + 2*(32+8)
)

// cost is the memory of an operation in bytes: peak while it runs, and net, the
// increase after it.
type cost struct{ peak, net int64 }

func plain(n int64) cost { return cost{n, n} }

// verdict is the answer to a request for memory.
type verdict uint8

const (
	granted   verdict = iota
	overShare         // refused: the target or its group would exceed its share
	noRoom            // refused: other targets must free memory first
)

// group is targets with a common share of the memory: the pods of a namespace. Each
// exporter is a group of its own.
type group struct {
	bytes   atomic.Int64
	targets int // guarded by Store.mu
}

// ledger is the account of the memory of all targets, in bytes.
type ledger struct {
	limit, soft  int64        // above soft, a target may grow only up to its share
	total, rings atomic.Int64 // all, and the rings' part; total never exceeds limit
	targetShare  atomic.Int64 // of one target; noLevel: no limit
	groupShare   atomic.Int64 // of one group; noLevel: no limit
	moved        atomic.Int64 // bytes granted since the shares were last computed
	rebalanceDue atomic.Bool  // the shares must be computed again
}

const noLevel = math.MaxInt64

func (l *ledger) init(limit int64) {
	l.limit, l.soft = limit, limit-limit/8
	l.targetShare.Store(noLevel)
	l.groupShare.Store(noLevel)
}

// take charges c to a target of group g that has own bytes already.
func (l *ledger) take(g *group, own int64, c cost) verdict {
	for {
		total := l.total.Load()
		if total+c.net > l.soft {
			if l.moved.Load() > l.limit/64 {
				l.rebalanceDue.Store(true)
			}
			if own+c.net > l.targetShare.Load() || g.bytes.Load()+c.net > l.groupShare.Load() {
				return overShare
			}
		}
		if total+c.peak > l.limit {
			return noRoom
		}
		if l.total.CompareAndSwap(total, total+c.peak) {
			break
		}
	}
	g.bytes.Add(c.peak)
	l.moved.Add(max(c.net, 0))
	return granted
}

// reserve charges the most that an operation can cost, before it runs. settle returns
// the excess. The caller holds t.mu for both.
func (t *Target) reserve(c cost) verdict {
	v := t.store.take(t.group, t.charged.Load(), c)
	if v == granted {
		t.charged.Add(c.peak)
	}
	return v
}

// settle sets the target's account to its actual size.
func (t *Target) settle() {
	if t.closed {
		return
	}
	t.charge(t.size(), t.ring.bytes())
}

// release clears the account of a closed target.
func (t *Target) release() {
	t.charge(0, 0)
	t.store.limited.remove(t)
}

func (t *Target) charge(bytes, rings int64) {
	l := &t.store.ledger
	diff := bytes - t.charged.Load()
	l.total.Add(diff)
	t.group.bytes.Add(diff)
	t.charged.Store(bytes)
	l.rings.Add(rings - t.rings)
	t.rings = rings
}

// size returns the target's bytes. It sums counters that every change updates; a test
// compares it with a full count.
func (t *Target) size() int64 {
	return targetBytes + int64(len(t.name)) + t.writer + t.ring.bytes() + t.keys + t.lists + t.exposed.bytes + t.failures.bytes() +
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

func deviceCost(uuid string) cost {
	return plain(deviceBytes + deviceEntry + TextBytes(len(uuid)))
}

// costOfSeries returns the most that a new series can cost.
func (t *Target) costOfSeries(k Key) cost {
	c := plain(TextBytes(max(len(k.Metric)+len(k.Pod), lineKey)) + idEntry + 8)
	c = c.add(t.ring.costOfColumn(isWide(k)))
	if n := int64(cap(t.series)); len(t.free) == 0 && len(t.series) == cap(t.series) {
		c = c.add(cost{(2*n + 8) * seriesBytes, (n + 8) * seriesBytes})
	}
	if k.Device == "" {
		return c
	}
	d := t.devices[k.Device]
	if d == nil {
		return c.add(deviceCost(k.Device)).add(plain(8 * (shareBytes + fieldBytes)))
	}
	if k.Pod != "" && len(d.shares) == cap(d.shares) {
		return c.add(plain(int64(2*cap(d.shares)+8) * shareBytes))
	}
	if k.Pod == "" && len(d.fields) == cap(d.fields) {
		return c.add(plain(int64(2*cap(d.fields)+8) * fieldBytes))
	}
	return c
}

func (c cost) add(o cost) cost { return cost{c.peak + o.peak, c.net + o.net} }

// costOf returns the most that changes of owners can cost.
func (t *Target) costOf(changes []ownerChange) cost {
	n := int64(0)
	for i := range changes {
		c := &changes[i]
		n += ownerBytes(c.owners) - min(ownerBytes(c.device.owners), ownerBytes(c.owners))
		eachPod(c.device.owners, c.owners, func(k podKey, before, after bool) {
			t.steps++
			if before || !after {
				return
			}
			h := t.pods[k]
			switch {
			case h == nil:
				n += holdingBytes + holdingEntry + TextBytes(len(k.pod)) + 2*spanSize
			default:
				n += 3 * spanSize
			}
		})
	}
	// append doubles a list of up to 256 entries.
	for i := range changes {
		n += ownerSize * int64(len(changes[i].owners))
	}
	return plain(n + 1024)
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
		if v := t.reserve(plain(bytes - t.writer)); v != granted {
			t.refuse(RefusedWriter, 1)
			return false, v == noRoom
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
	s.rebalanceDue.Store(false)
	if s.moved.Load() < s.limit/256 && s.targetShare.Load() != noLevel {
		return // it ran a moment ago: another run would free nothing
	}
	sizes, groups := s.sizes()
	target, shares := share(sizes, groups, s.soft-s.limit/16, s.cfg.honest())
	s.targetShare.Store(target)
	s.groupShare.Store(shares.level)
	for i := range sizes {
		x := &sizes[i]
		if most := min(target, shares.of(x)); x.bytes > most {
			x.target.shrink(most)
		}
	}
	s.moved.Store(0)
}

// rebalanceIfDue runs rebalance if growth since the last one requires it.
func (s *Store) rebalanceIfDue() {
	if s.rebalanceDue.Load() {
		s.rebalance()
	}
}

// sized is a target with its size, for the computation of shares.
type sized struct {
	target *Target
	group  *group
	bytes  int64
}

// sizes returns the sizes of all targets, and those of each group's targets.
func (s *Store) sizes() ([]sized, map[*group][]int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]sized, 0, len(s.targets))
	groups := map[*group][]int64{}
	for _, t := range s.targets {
		x := sized{t, t.labelGroup, t.charged.Load()}
		out = append(out, x)
		groups[x.group] = append(groups[x.group], x.bytes)
	}
	return out, groups
}

// shares are the limits for groups, in bytes.
type shares struct {
	level   int64            // for each group
	members map[*group]int64 // for each target of a group that exceeds level
}

func (s *shares) of(x *sized) int64 {
	if l, ok := s.members[x.group]; ok {
		return l
	}
	return noLevel
}

// share divides capacity between targets. The first limit is for each target: the
// largest targets shrink to the same size, but not below honest. If that does not
// suffice, the second limit is for each group: the largest groups shrink to the same
// size, and in a group its largest targets.
func share(sizes []sized, groups map[*group][]int64, capacity, honest int64) (int64, shares) {
	all := make([]int64, 0, len(sizes))
	for i := range sizes {
		all = append(all, sizes[i].bytes)
	}
	target := max(level(all, capacity), honest)
	sums := make([]int64, 0, len(groups))
	for _, members := range groups {
		sums = append(sums, sumUpTo(members, target))
	}
	g := shares{level: level(sums, capacity), members: map[*group]int64{}}
	if g.level == noLevel {
		return target, g
	}
	for key, members := range groups {
		if sumUpTo(members, target) > g.level {
			g.members[key] = level(members, g.level)
		}
	}
	return target, g
}

func sumUpTo(sizes []int64, most int64) (sum int64) {
	for _, n := range sizes {
		sum += min(n, most)
	}
	return sum
}

// level returns the largest size limit with which all fit into capacity. Smaller
// items keep their size. It returns noLevel if no limit is needed.
func level(sizes []int64, capacity int64) int64 {
	slices.SortFunc(sizes, cmp.Compare)
	left := max(capacity, 0)
	for i, n := range sizes {
		if each := left / int64(len(sizes)-i); n > each {
			return each
		}
		left -= n
	}
	return noLevel
}
