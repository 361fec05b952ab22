// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"slices"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// columns are the series of a target: the ring of their samples, with one column for each.
// A free id has no column, and free never has more room than series.
type columns struct {
	ring     ring.Ring
	series   []seriesState         // by id
	free     []uint32              // ids of dead series
	metrics  table[string, uint32] // ids of a pod's own metrics
	gen      uint32                // of the newest series
	live     int                   // series
	lastPage int                   // points of the last batch
	names    int64                 // bytes
}

// seriesState is one column of the ring.
type seriesState struct {
	last   int64 // the newest timestamp when it last got a value or a Ref
	gen    uint32
	column ring.Column
	live   bool
	own    bool   // a pod's own metric
	name   string // of the metric, or of the pod for a share; empty for a device's field
}

const (
	seriesBytes = int64(unsafe.Sizeof(seriesState{})) + 4 // with its place in the list of free ids
	idEntry     = 2 * (16 + 4)
)

// size returns the bytes of the columns and of their names.
func (c *columns) size() int64 {
	return c.ring.Bytes() + c.names + int64(cap(c.series))*seriesBytes + int64(c.metrics.peak)*idEntry
}

// costOf returns the most that a new series can cost.
func (c *columns) costOf(k *Key) ledger.Cost {
	cost := ledger.Plain(TextBytes(max(len(k.Metric)+len(k.Pod), lineKey)) + idEntry + 8).Add(c.ring.CostOfColumn(k.width()))
	if n := int64(cap(c.series)); len(c.free) == 0 && len(c.series) == cap(c.series) {
		cost = cost.Add(ledger.Cost{Peak: (2*n + 8) * seriesBytes, Net: (n + 8) * seriesBytes})
	}
	return cost
}

// add adds the series of a key and returns its id.
func (c *columns) add(k *Key) uint32 {
	var id uint32
	if n := len(c.free); n > 0 {
		id, c.free = c.free[n-1], c.free[:n-1]
	} else {
		id = uint32(len(c.series))
		c.series = append(c.series, seriesState{})
	}
	c.gen++
	s := seriesState{gen: c.gen, live: true, own: k.Device == "", name: k.Pod + k.Metric} // one of the two is empty
	s.column = c.ring.AddColumn(k.width())
	c.series[id] = s
	c.live++
	c.names += TextBytes(len(s.name))
	if s.own {
		c.metrics.put(k.Metric, id)
	}
	return id
}

// of returns the series of a Ref; nil if the Ref is not, or no longer, valid.
func (c *columns) of(r Ref) *seriesState {
	if int(r.id) >= len(c.series) {
		return nil
	}
	if s := &c.series[r.id]; s.live && s.gen == r.gen {
		return s
	}
	return nil
}

// touch protects a series from sweep before it gets its first value.
func (c *columns) touch(id uint32) Ref {
	s := &c.series[id]
	if newest, ok := c.ring.Newest(); ok {
		s.last = newest
	}
	return Ref{id, s.gen}
}

// fill stores the values of a batch in the newest slot. It calls widen for a series whose
// value its column cannot have; widen returns false if the column stays as it is.
func (c *columns) fill(b *Batch, stamp int64, widen func(id uint32) bool) (stored, unknown int, widened bool) {
	c.lastPage = len(b.Points)
	for _, p := range b.Points {
		s := c.of(p.Ref)
		if s == nil {
			unknown++
			continue
		}
		if math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			continue
		}
		if !c.ring.Set(s.column, p.Value) {
			widened = true
			if !widen(p.Ref.id) {
				continue
			}
			s = &c.series[p.Ref.id]
			c.ring.Set(s.column, p.Value)
		}
		s.last = stamp
		stored++
	}
	// New series are seldom short: the short columns are freed if they are many.
	if _, short := c.ring.FreeColumns(); widened && short > c.live/8 {
		c.compact(c.ring.Slots(), true)
	}
	return stored, unknown, widened
}

// latest returns a series' newest value that is not older than notBefore.
func (c *columns) latest(id uint32, notBefore int64) (ring.Stamped, bool) {
	s := &c.series[id]
	if s.last < notBefore {
		return ring.Stamped{}, false
	}
	return c.ring.Latest(s.column, notBefore)
}

// rewind empties the window.
func (c *columns) rewind() {
	c.ring.Clear()
	for i := range c.series {
		c.series[i].last = 0
	}
}

// drop frees one series.
func (c *columns) drop(id uint32) {
	s := &c.series[id]
	if s.own {
		delete(c.metrics.entries, s.name)
		c.metrics.fit()
	}
	c.names -= TextBytes(len(s.name))
	c.ring.FreeColumn(s.column)
	s.live, s.name = false, ""
	c.free = ledger.AppendFree(c.free, id, cap(c.series))
	c.live--
}

// dropAll frees the series for which gone returns true, and returns how many.
func (c *columns) dropAll(gone func(id uint32, s *seriesState) bool) (n int) {
	for id := range c.series {
		if s := &c.series[id]; s.live && gone(uint32(id), s) {
			c.drop(uint32(id))
			n++
		}
	}
	return n
}

// evict frees n series, those with the highest ids first, and returns how many.
func (c *columns) evict(n int) (evicted int) {
	for id := len(c.series) - 1; id >= 0 && evicted < n; id-- {
		if c.series[id].live {
			c.drop(uint32(id))
			evicted++
		}
	}
	return evicted
}

// compact rebuilds the ring with so many slots and without the free columns. Unless
// forced, it does so only if most columns are free.
func (c *columns) compact(slots int, forced bool) {
	free, _ := c.ring.FreeColumns()
	if !forced && (free < churnSlack || free < c.live) {
		return
	}
	var keep ring.Columns
	for id := range c.series {
		if s := &c.series[id]; s.live {
			s.column = keep.Keep(s.column)
		}
	}
	c.ring.Rebuild(slots, &keep)
	// Drop the ids after the last live series. Free ids before it stay.
	end := len(c.series)
	for end > 0 && !c.series[end-1].live {
		end--
	}
	if cap(c.series) > 2*end+churnSlack || forced && cap(c.series) > end+end/8+churnSlack {
		c.series = slices.Clone(c.series[:end])
		c.free = ledger.Fit(slices.DeleteFunc(c.free, func(id uint32) bool { return int(id) >= end }), cap(c.series))
	}
}

// samples appends the values of a column within [from, to], oldest first.
func (c *columns) samples(dst []Sample, column ring.Column, from, to int64) []Sample {
	for i, end := c.ring.Between(from, to); i < end; i++ {
		slot := c.ring.Slot(i)
		if v, ok := c.ring.At(column, slot); ok {
			dst = append(dst, Sample{time.Unix(0, c.ring.Stamp(slot)), v})
		}
	}
	return dst
}
