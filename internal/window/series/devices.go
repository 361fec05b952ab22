// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"maps"
	"slices"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// devices are the devices of a target, with their series and owners.
type devices struct {
	byUUID   table[string, *device]
	measured []*device // with a series of their utilisation
	owned    int       // with an owner
	bytes    int64     // of names, and of the lists of series and owners
}

// device is one device of a target.
type device struct {
	uuid    string
	place   [2]int // the index of the GPU on its node, plus 1, and Slices of DeviceWindow; 0: unknown
	fields  []deviceField
	shares  []deviceShare
	owners  []gpu.Owner // from SetOwners
	next    []gpu.Owner // the new owners during an update
	since   int64       // when these became the owners, ns; 0: never set
	idle    gpu.IdleRun
	util    uint32 // the id of the series of its utilisation, plus 1; 0: none
	round   uint32 // the last update that listed the device
	changed uint32 // the last update that changed the owners
}

type deviceField struct {
	field gpu.FieldID
	id    uint32
}

// deviceShare is a pod's measured share of a field.
type deviceShare struct {
	deviceField
	pod string // as in Key
}

const (
	fieldBytes  = int64(unsafe.Sizeof(deviceField{}))
	shareBytes  = int64(unsafe.Sizeof(deviceShare{}))
	ownerSize   = int64(unsafe.Sizeof(gpu.Owner{}))
	deviceBytes = int64(unsafe.Sizeof(device{})) + 2*8 // with its place in the list of measured ones
	deviceEntry = 2 * (16 + 8)
)

// size returns the bytes of the devices.
func (x *devices) size() int64 {
	return x.bytes + int64(len(x.byUUID.entries))*deviceBytes + int64(x.byUUID.peak)*deviceEntry
}

// costOf returns the most that a new series of a device can cost.
func (x *devices) costOf(k *Key) ledger.Cost {
	d := x.byUUID.entries[k.Device]
	switch {
	case k.Device == "":
	case d == nil:
		return deviceCost(k.Device).Add(ledger.Plain(8 * (shareBytes + fieldBytes)))
	case k.Pod != "" && len(d.shares) == cap(d.shares):
		return ledger.Plain(int64(2*cap(d.shares)+8) * shareBytes)
	case k.Pod == "" && len(d.fields) == cap(d.fields):
		return ledger.Plain(int64(2*cap(d.fields)+8) * fieldBytes)
	}
	return ledger.Cost{}
}

func deviceCost(uuid string) ledger.Cost {
	return ledger.Plain(deviceBytes + deviceEntry + TextBytes(len(uuid)))
}

// isFull reports whether a limit refuses a new series of a device, and which one.
func (x *devices) isFull(k *Key) (Refused, bool) {
	d := x.byUUID.entries[k.Device]
	switch {
	case k.Device == "":
		return 0, false
	case d == nil:
		return RefusedDevice, len(x.byUUID.entries) >= MaxDevices
	}
	return RefusedSeries, k.Pod != "" && len(d.shares) >= MaxShares
}

// lookup returns the id of a device's series.
func (x *devices) lookup(k *Key) (uint32, bool) {
	d := x.byUUID.entries[k.Device]
	switch {
	case d == nil:
		return 0, false
	case k.Pod == "":
		return d.series(k.Field)
	}
	for i := range d.shares {
		if s := &d.shares[i]; s.field == k.Field && s.pod == k.Pod {
			return s.id, true
		}
	}
	return 0, false
}

// add returns the device of this name, and adds it if it is new.
func (x *devices) add(uuid string) *device {
	d := x.byUUID.entries[uuid]
	if d == nil {
		d = &device{uuid: uuid}
		x.byUUID.put(uuid, d)
		x.bytes += TextBytes(len(uuid))
	}
	return d
}

// addSeries adds the series of a key, with this id, to its device.
func (x *devices) addSeries(k *Key, id uint32) {
	d := x.add(k.Device)
	x.bytes -= d.listBytes()
	if k.Pod != "" {
		d.shares = append(d.shares, deviceShare{deviceField{k.Field, id}, k.Pod})
	} else {
		d.fields = append(d.fields, deviceField{k.Field, id})
	}
	if k.Pod == "" && k.Field == gpu.GPUUtil {
		d.util, x.measured = id+1, append(x.measured, d)
	}
	x.bytes += d.listBytes()
}

// setOwners replaces the owners of a device by the next ones.
func (x *devices) setOwners(d *device, stamp int64) {
	x.bytes += ownerBytes(d.next) - ownerBytes(d.owners)
	x.owned += min(len(d.next), 1) - min(len(d.owners), 1)
	d.owners, d.next, d.since = d.next, nil, stamp
}

// forget removes the dead series, and the devices without series and owners.
func (x *devices) forget(c *columns) {
	dead := func(f deviceField) bool { return !c.series[f.id].live }
	for uuid, d := range x.byUUID.entries {
		d.fields = slices.DeleteFunc(d.fields, dead)
		d.shares = slices.DeleteFunc(d.shares, func(s deviceShare) bool { return dead(s.deviceField) })
		if d.util > 0 && !c.series[d.util-1].live {
			d.util = 0
		}
		if len(d.fields) == 0 && len(d.shares) == 0 && len(d.owners) == 0 {
			x.bytes -= d.listBytes() + TextBytes(len(uuid))
			delete(x.byUUID.entries, uuid)
		}
	}
	x.measured = slices.DeleteFunc(x.measured, func(d *device) bool { return d.util == 0 })
	x.byUUID.fit()
}

// rewind lets the owners begin no later than stamp, to which the clock was set back.
func (x *devices) rewind(stamp int64) {
	for _, d := range x.byUUID.entries {
		d.since, d.idle = min(d.since, stamp), gpu.IdleRun{}
	}
}

// trackIdle adds the utilisations of the newest slot to the idle runs of the devices.
func (x *devices) trackIdle(c *columns, stamp, gap int64) {
	for _, d := range x.measured {
		if s := &c.series[d.util-1]; s.last == stamp {
			if v, ok := c.ring.At(s.column, c.ring.Slot(c.ring.Len()-1)); ok {
				d.idle.Add(stamp, gap, v)
			}
		}
	}
}

func (d *device) series(f gpu.FieldID) (uint32, bool) {
	for _, x := range d.fields {
		if x.field == f {
			return x.id, true
		}
	}
	return 0, false
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

// DeviceView is one device as the fleet's page shows it.
type DeviceView struct {
	Target string
	Labels TargetLabels
	Device string      // as in Key
	Index  int         // as in DeviceWindow
	Slices int         // as in DeviceWindow
	Owners []gpu.Owner // read-only; empty: no owner
	Since  time.Time   // when these became the owners; zero: unknown
	Idle   gpu.IdleRun
	Values []FieldSample // the newest values of the requested fields
}

// Devices lists the devices of all targets with the newest value of each of the
// fields that is no older than maxAge, sorted by node, target and device. A node that is
// not empty selects its targets.
func (s *Store) Devices(node string, fields []gpu.FieldID, now time.Time, maxAge time.Duration) []DeviceView {
	s.mu.RLock()
	targets := make([]*Target, 0, len(s.targets))
	for _, t := range s.targets {
		if node == "" || t.facts.labels.Load().Node == node {
			targets = append(targets, t)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(targets, func(a, b *Target) int {
		return cmp.Or(cmp.Compare(a.facts.labels.Load().Node, b.facts.labels.Load().Node), cmp.Compare(a.name, b.name))
	})
	out := make([]DeviceView, 0, 8*len(targets))
	for _, t := range targets {
		out = t.views(out, fields, now.UnixNano()-int64(t.Keep(maxAge)))
	}
	return out
}

func (t *Target) views(out []DeviceView, fields []gpu.FieldID, notBefore int64) []DeviceView {
	t.mu.RLock()
	defer t.mu.RUnlock()
	l := t.facts.labels.Load()
	for _, uuid := range slices.Sorted(maps.Keys(t.devices.byUUID.entries)) {
		d := t.devices.byUUID.entries[uuid]
		v := DeviceView{Target: t.name, Labels: *l, Device: uuid, Index: d.place[0] - 1, Slices: d.place[1], Owners: d.owners, Idle: d.idle, Values: make([]FieldSample, 0, len(fields))}
		if d.since != 0 {
			v.Since = time.Unix(0, d.since)
		}
		for _, f := range fields {
			if id, ok := d.series(f); ok {
				if x, ok := t.columns.latest(id, notBefore); ok {
					v.Values = append(v.Values, FieldSample{f, sampleOf(x)})
				}
			}
		}
		out = append(out, v)
	}
	return out
}
