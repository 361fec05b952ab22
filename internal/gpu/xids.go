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
	devices map[string][]XIDCount // sorted by code
}

// IsXID reports whether a number can be the code of an XID error. 0 cannot.
func IsXID(code float64) bool {
	r := fieldRanges[XIDErrors]
	return code > 0 && code <= r.Max
}

// LastXID returns the newest error of several lists. ok is false without one.
func LastXID(lists ...[]XIDCount) (last XIDCount, ok bool) {
	for _, list := range lists {
		for _, c := range list {
			if !ok || c.Last.After(last.Last) {
				last, ok = c, true
			}
		}
	}
	return last, ok
}

// AppendXIDs appends the errors of two lists that are sorted by code, with the sums of
// the counts of one code.
func AppendXIDs(out, a, b []XIDCount) []XIDCount {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Code < b[0].Code:
			out, a = append(out, a[0]), a[1:]
		case a[0].Code > b[0].Code:
			out, b = append(out, b[0]), b[1:]
		default:
			both, _ := LastXID(a[:1], b[:1])
			both.Count = a[0].Count + b[0].Count
			out, a, b = append(out, both), a[1:], b[1:]
		}
	}
	return append(append(out, a...), b...)
}

// Add records an XID error of the device. It ignores an invalid code. An error is newer
// than the ones before it, whatever their times are.
func (x *XIDLog) Add(uuid string, code uint64, at time.Time) {
	if !IsXID(float64(code)) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := LastXID(x.devices[uuid]); ok && !at.After(last.Last) {
		at = last.Last.Add(1)
	}
	x.at(uuid, code).add(1, at)
}

// Seed records an XID error that came when nobody counted: its code and time, not its
// number. It ignores an error that is not newer than the last one.
func (x *XIDLog) Seed(uuid string, code uint64, at time.Time) {
	if !IsXID(float64(code)) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if last, ok := LastXID(x.devices[uuid]); ok && !at.After(last.Last) {
		return
	}
	x.at(uuid, code).add(0, at)
}

func (c *XIDCount) add(n uint64, at time.Time) { c.Count, c.Last = c.Count+n, at }

// at returns the place of a code. The caller holds x.mu.
func (x *XIDLog) at(uuid string, code uint64) *XIDCount {
	if x.devices == nil {
		x.devices = map[string][]XIDCount{}
	}
	counts := x.devices[uuid]
	i, found := slices.BinarySearchFunc(counts, code, func(c XIDCount, code uint64) int { return cmp.Compare(c.Code, code) })
	if !found {
		counts = slices.Insert(counts, i, XIDCount{Code: code})
		x.devices[uuid] = counts
	}
	return &counts[i]
}

// Counts returns the device's XID errors, sorted by code, in a slice that the
// caller may keep.
func (x *XIDLog) Counts(uuid string) []XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.devices[uuid])
}

// Last returns the code of the last XID error of the devices; 0 without one.
func (x *XIDLog) Last(uuids ...string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	var last XIDCount
	for _, uuid := range uuids {
		if c, ok := LastXID(x.devices[uuid]); ok && !c.Last.Before(last.Last) {
			last = c
		}
	}
	return last.Code
}
