// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// XIDLog counts XID errors by device and code, for Reader.XIDs. It outlives a
// backend's sessions. The zero value is empty; methods may be called concurrently.
type XIDLog struct {
	mu      sync.Mutex
	devices map[string]*xidsOf
}

type xidsOf struct {
	last   uint64 // the code of the last error
	counts []XIDCount
}

// IsXID reports whether a number can be the code of an XID error. 0 cannot.
func IsXID(code float64) bool {
	r := fieldRanges[XIDErrors]
	return code > 0 && code <= r.Max
}

// Add records an XID error of the device. It ignores an invalid code.
func (x *XIDLog) Add(uuid string, code uint64, at time.Time) {
	if !IsXID(float64(code)) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices == nil {
		x.devices = map[string]*xidsOf{}
	}
	d := x.devices[uuid]
	if d == nil {
		d = &xidsOf{}
		x.devices[uuid] = d
	}
	d.last = code
	i, found := slices.BinarySearchFunc(d.counts, code, func(c XIDCount, code uint64) int { return cmp.Compare(c.Code, code) })
	if !found {
		d.counts = slices.Insert(d.counts, i, XIDCount{Code: code})
	}
	d.counts[i].Count++
	d.counts[i].Last = at
}

// Counts returns the device's XID errors, sorted by code, in a slice that the
// caller may keep.
func (x *XIDLog) Counts(uuid string) []XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return slices.Clone(d.counts)
	}
	return nil
}

// Last returns the code of the device's last XID error; 0 without one.
func (x *XIDLog) Last(uuid string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return d.last
	}
	return 0
}

// Seed sets the code of an XID error from before the agent's start. The error
// is not counted.
func (x *XIDLog) Seed(uuid string, code uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices == nil {
		x.devices = map[string]*xidsOf{}
	}
	if x.devices[uuid] == nil {
		x.devices[uuid] = &xidsOf{last: code}
	}
}
