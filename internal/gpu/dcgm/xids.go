// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// xidLog counts XID errors by device and code. It outlives sessions.
type xidLog struct {
	mu      sync.Mutex
	devices map[string]*xidsOf
}

type xidsOf struct {
	last   uint64 // the code of the last one
	counts []gpu.XIDCount
}

func (x *xidLog) add(uuid string, code uint64, at time.Time) {
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
	i, found := slices.BinarySearchFunc(d.counts, code, func(c gpu.XIDCount, code uint64) int { return cmp.Compare(c.Code, code) })
	if !found {
		d.counts = slices.Insert(d.counts, i, gpu.XIDCount{Code: code})
	}
	d.counts[i].Count++
	d.counts[i].Last = at
}

func (x *xidLog) counts(uuid string) []gpu.XIDCount {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return slices.Clone(d.counts)
	}
	return nil
}

// last is the code of the device's last XID error, 0 while there was none.
func (x *xidLog) last(uuid string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.devices[uuid]; d != nil {
		return d.last
	}
	return 0
}

// seed tells the code of an XID error from before our time: it is not counted.
func (x *xidLog) seed(uuid string, code uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.devices == nil {
		x.devices = map[string]*xidsOf{}
	}
	if x.devices[uuid] == nil {
		x.devices[uuid] = &xidsOf{last: code}
	}
}
