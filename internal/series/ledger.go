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

// What things cost, in bytes. A map takes about twice its entries.
const (
	targetBytes  = int64(unsafe.Sizeof(Target{})) + 4*48 + 2*24 // with its maps' headers and its place in the store
	serieBytes   = int64(unsafe.Sizeof(serie{}))
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

// cost is what something takes: peak while it is done, net of what it replaces
// afterwards.
type cost struct{ peak, net int64 }

func plain(n int64) cost { return cost{n, n} }

// verdict says whether a target may take more memory.
type verdict uint8

const (
	granted   verdict = iota
	overShare         // it has its share, or more
	noRoom            // it has less than its share, which others must make room for
)

// group are targets that pay as one: the pods of a namespace. Each exporter is
// a group of its own.
type group struct {
	bytes   atomic.Int64
	targets int // guarded by Store.mu
}

// ledger is the one account of memory: what each target takes, and all of them.
type ledger struct {
	limit, soft  int64        // above soft a target may grow up to its share only
	total, rings atomic.Int64 // total is never above limit
	targetShare  atomic.Int64 // of one target, and of a group; noLevel: no limit
	groupShare   atomic.Int64
	moved        atomic.Int64 // bytes taken since the shares were last computed
	pressed      atomic.Bool  // the shares are to be computed
}

const noLevel = math.MaxInt64

func (l *ledger) init(limit int64) {
	l.limit, l.soft = limit, limit-limit/8
	l.targetShare.Store(noLevel)
	l.groupShare.Store(noLevel)
}

// take adds to the account of a target that has own bytes and is of group g.
func (l *ledger) take(g *group, own int64, c cost) verdict {
	for {
		total := l.total.Load()
		if total+c.net > l.soft {
			if l.moved.Load() > l.limit/64 {
				l.pressed.Store(true)
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

// reserve takes what an operation costs at most, before it is done; settle
// gives back what was too much. t.mu is held for both.
func (t *Target) reserve(c cost) verdict {
	v := t.store.take(t.group, t.charged.Load(), c)
	if v == granted {
		t.charged.Add(c.peak)
	}
	return v
}

// settle makes the account of the target what it has.
func (t *Target) settle() {
	if t.closed {
		return
	}
	t.charge(t.size(), t.ring.bytes())
}

// release takes a target that is closed off the account.
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

// size is what the target takes. It adds up what is kept as it changes; a test
// compares it with a count of everything.
func (t *Target) size() int64 {
	return targetBytes + int64(len(t.name)) + t.writer + t.ring.bytes() + t.keys + t.lists +
		int64(cap(t.series))*serieBytes + int64(cap(t.free))*4 +
		int64(len(t.devices))*deviceBytes + int64(t.devPeak)*deviceEntry +
		int64(t.idsPeak)*idEntry +
		int64(len(t.pods))*holdingBytes + int64(t.podsPeak)*holdingEntry
}

// listBytes are those of the device's lists of series.
func (d *device) listBytes() int64 {
	return int64(cap(d.fields))*fieldBytes + int64(cap(d.shares))*shareBytes
}

func ownerBytes(list []gpu.Owner) int64 {
	n := int64(cap(list)) * ownerSize
	for i := range list {
		o := &list[i]
		n += TextBytes(len(o.Pod)) + TextBytes(len(o.Replica)) // the other two are shared by most
	}
	return n
}

// TextBytes is what a name of so many bytes takes: the allocator rounds up.
func TextBytes(length int) int64 { return int64(length+15) &^ 15 }

func spanBytes(h *holding) int64 { return int64(cap(h.spans)) * spanSize }

func deviceCost(uuid string) cost {
	return plain(deviceBytes + deviceEntry + TextBytes(len(uuid)))
}

// costOfSeries is what a new series costs at most.
func (t *Target) costOfSeries(k Key) cost {
	c := plain(TextBytes(len(k.Metric)+len(k.Pod)) + idEntry + 8)
	c = c.add(t.ring.costOfColumn(isWide(k)))
	if n := int64(cap(t.series)); len(t.free) == 0 && len(t.series) == cap(t.series) {
		c = c.add(cost{(2*n + 8) * serieBytes, (n + 8) * serieBytes})
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

// costOf is what changes of owners cost at most.
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
	// Lists grow by doubling up to 256 entries: what is there may double.
	for i := range changes {
		n += ownerSize * int64(len(changes[i].owners))
	}
	return plain(n + 1024)
}

// Account says how many bytes the target's writer holds for it: connections,
// buffers, what it remembers of the last page. It is false where the memory
// limit refuses the increase; the writer then gives up what it can and calls
// Account again.
func (t *Target) Account(bytes int64) bool {
	ok, blocked := t.account(bytes)
	if blocked {
		t.store.squeeze()
		ok, _ = t.account(bytes)
	}
	t.store.relieve()
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

// squeeze computes the shares and has the targets that take more than theirs
// give up the rest. No target's mu is held.
func (s *Store) squeeze() {
	s.squeezing.Lock()
	defer s.squeezing.Unlock()
	s.pressed.Store(false)
	if s.moved.Load() < s.limit/256 && s.targetShare.Load() != noLevel {
		return // it was just done; once more would not make more room
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

// relieve computes the shares if growth made that due.
func (s *Store) relieve() {
	if s.pressed.Load() {
		s.squeeze()
	}
}

// sized is a target as the shares are computed from.
type sized struct {
	target *Target
	group  *group
	bytes  int64
}

// sizes are those of all targets, and of those of each group with several.
func (s *Store) sizes() ([]sized, map[*group][]int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]sized, 0, len(s.targets))
	groups := map[*group][]int64{}
	for _, t := range s.targets {
		x := sized{t, t.pays, t.charged.Load()}
		out = append(out, x)
		groups[x.group] = append(groups[x.group], x.bytes)
	}
	return out, groups
}

// shares are the levels of groups.
type shares struct {
	level   int64            // that no group's bytes may exceed
	members map[*group]int64 // the level of the targets of a group that exceeds it
}

func (s *shares) of(x *sized) int64 {
	if l, ok := s.members[x.group]; ok {
		return l
	}
	return noLevel
}

// share divides capacity between targets. First the largest targets shrink, all
// to one level, but not below the size of an honest one. Where that does not
// suffice the largest groups do, all to one level, and within a group its
// largest targets.
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

// level is the size that none may exceed for all to fit into capacity: below
// it everybody has what it takes. noLevel: they fit.
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
