// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

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

func (d *device) series(f gpu.FieldID) (uint32, bool) {
	for _, x := range d.fields {
		if x.field == f {
			return x.id, true
		}
	}
	return 0, false
}

// trackIdle adds the utilisations of the newest slot to the idle runs of the devices.
func (t *Target) trackIdle(stamp int64) {
	gap := max(t.keep.Load(), int64(gpu.MaxAge(t.store.cfg.Interval)))
	for _, d := range t.measured {
		if s := &t.series[d.util-1]; s.last == stamp {
			if v, ok := t.ring.At(s.column, t.ring.Slot(t.ring.Len()-1)); ok {
				d.idle.Add(stamp, gap, v)
			}
		}
	}
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
	type labelled struct {
		t *Target
		l TargetLabels
	}
	targets := make([]labelled, 0, len(s.targets))
	for _, t := range s.targets {
		if node == "" || t.labels.Node == node {
			targets = append(targets, labelled{t, t.labels})
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(targets, func(a, b labelled) int {
		return cmp.Or(cmp.Compare(a.l.Node, b.l.Node), cmp.Compare(a.t.name, b.t.name))
	})
	out := make([]DeviceView, 0, 8*len(targets))
	for _, x := range targets {
		out = x.t.views(out, x.l, fields, now.UnixNano(), now.UnixNano()-int64(maxAge))
	}
	return out
}

func (t *Target) views(out []DeviceView, l TargetLabels, fields []gpu.FieldID, now, notBefore int64) []DeviceView {
	t.mu.RLock()
	defer t.mu.RUnlock()
	notBefore = min(notBefore, now-t.keep.Load())
	for _, uuid := range slices.Sorted(maps.Keys(t.devices)) {
		d := t.devices[uuid]
		v := DeviceView{Target: t.name, Labels: l, Device: uuid, Index: d.place[0] - 1, Slices: d.place[1], Owners: d.owners, Idle: d.idle, Values: make([]FieldSample, 0, len(fields))}
		if d.since != 0 {
			v.Since = time.Unix(0, d.since)
		}
		for _, f := range fields {
			if id, ok := d.series(f); ok {
				if x, ok := t.latest(id, notBefore); ok {
					v.Values = append(v.Values, FieldSample{f, sampleOf(x)})
				}
			}
		}
		out = append(out, v)
	}
	return out
}
