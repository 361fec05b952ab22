// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// clockEvents are the reasons that hold clocks below their maximum,
// nvmlClocksEventReason* of nvml.h, under dcgm-exporter's names.
var clockEvents = [...]struct {
	bit  uint16
	name string
}{
	{0x001, "gpu_idle"},
	{0x002, "clocks_setting"},
	{0x004, "power_cap"},
	{0x008, "hw_slowdown"},
	{0x010, "sync_boost"},
	{0x020, "sw_thermal"},
	{0x040, "hw_thermal"},
	{0x080, "hw_power_brake"},
	{0x100, "display_clocks"},
}

// maxClockSamples limits the memory of a window: an hour at one sample per
// second.
const maxClockSamples = 3600

// history is the past collections that derived metrics need, by UUID. A change
// of the collectors does not clear it.
type history struct {
	clockWindow, xidWindow time.Duration
	devices                map[string]*past
	round                  uint64
}

// past is a device's history.
type past struct {
	round  uint64    // of the last collection that had the device
	seen   time.Time // of the last values that were added
	clocks clockPast
	counts []gpu.XIDCount // of the device, with those of an instance's GPU
	xids   xidPast
}

func (h *history) of(uuid string) *past { return h.devices[uuid] }

// update adds a collection. It removes devices that are no longer in it.
func (h *history) update(s *gpu.Snapshot, now time.Time) {
	if h.devices == nil {
		h.devices = map[string]*past{}
	}
	h.round++
	for i := range s.Devices {
		d := &s.Devices[i]
		p := h.devices[d.UUID]
		if p == nil {
			p = &past{}
			h.devices[d.UUID] = p
		}
		p.round = h.round
		if mask, ok := d.Values.Get(gpu.ClocksEventReasons); ok && !d.Collected.Equal(p.seen) {
			p.clocks.add(d.Collected, uint16(uint64(max(mask, 0))&0xffff))
		}
		p.seen = d.Collected
		p.clocks.expire(now.Add(-h.clockWindow))
		p.counts = gpu.AppendXIDs(p.counts[:0], d.XIDs, d.GPUXIDs)
		p.xids.update(p.counts, now.Add(-h.xidWindow))
	}
	if len(h.devices) > len(s.Devices) {
		for uuid, p := range h.devices {
			if p.round != h.round {
				delete(h.devices, uuid)
			}
		}
	}
}

// clockPast are the reasons of a window's collections.
type clockPast struct {
	samples []clockSample // from first on
	first   int
	held    [len(clockEvents)]uint32 // in how many samples each reason is
	began   [len(clockEvents)]uint64 // since the start
	primed  bool
	last    uint16
}

type clockSample struct {
	at   int64 // UnixNano
	mask uint16
}

func (c *clockPast) add(at time.Time, mask uint16) {
	if len(c.samples)-c.first >= maxClockSamples {
		c.drop()
	}
	if c.first > 0 && c.first >= len(c.samples)/2 && len(c.samples) == cap(c.samples) {
		c.samples = c.samples[:copy(c.samples, c.samples[c.first:])]
		c.first = 0
	}
	c.samples = append(c.samples, clockSample{at.UnixNano(), mask})
	for i := range clockEvents {
		if mask&clockEvents[i].bit == 0 {
			continue
		}
		c.held[i]++
		// A reason in the first sample began at an unknown time: it does not
		// count as begun.
		if c.primed && c.last&clockEvents[i].bit == 0 {
			c.began[i]++
		}
	}
	c.last, c.primed = mask, true
}

func (c *clockPast) empty() bool { return c.first == len(c.samples) }

func (c *clockPast) expire(before time.Time) {
	for c.first < len(c.samples) && c.samples[c.first].at < before.UnixNano() {
		c.drop()
	}
}

func (c *clockPast) drop() {
	mask := c.samples[c.first].mask
	for i := range clockEvents {
		if mask&clockEvents[i].bit != 0 {
			c.held[i]--
		}
	}
	c.first++
}

// xidPast are the XID errors of a window.
type xidPast struct {
	codes  []xidCode
	events []xidEvent // in order of time
}

type xidCode struct {
	code, total, recent uint64
}

type xidEvent struct {
	at      time.Time
	code, n uint64
}

func (x *xidPast) update(counts []gpu.XIDCount, before time.Time) {
	for _, n := range counts {
		c := x.find(n.Code)
		if n.Count <= c.total {
			continue
		}
		x.events = append(x.events, xidEvent{n.Last, n.Code, n.Count - c.total})
		c.recent += n.Count - c.total
		c.total = n.Count
	}
	keep := x.events[:0]
	for _, e := range x.events {
		if e.at.Before(before) {
			x.find(e.code).recent -= e.n
			continue
		}
		keep = append(keep, e)
	}
	x.events = keep
}

func (x *xidPast) find(code uint64) *xidCode {
	for i := range x.codes {
		if x.codes[i].code == code {
			return &x.codes[i]
		}
	}
	x.codes = append(x.codes, xidCode{code: code})
	return &x.codes[len(x.codes)-1]
}

// windows are the labels with the sizes of the windows.
type windows struct{ clock, xid []byte }

func windowLabel(d time.Duration) []byte {
	b := strconv.AppendInt([]byte(`,window_size_in_ms="`), d.Milliseconds(), 10)
	return append(b, '"')
}

func appendXIDLabel(b []byte, code uint64) []byte {
	b = append(b, `,xid="`...)
	b = strconv.AppendUint(b, code, 10)
	return append(b, '"')
}

func appendUint(b []byte, v uint64) []byte { return strconv.AppendUint(b, v, 10) }
