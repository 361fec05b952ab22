// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#include <stdint.h>
*/
import "C"

import (
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// keepSamples is how many samples DCGM is to keep of a field: the one that is
// read, and the next, which may be on its way.
const keepSamples = 2

// rewatchEvery is the least time between two watches of the same fields. DCGM
// keeps one watch of a field for all that one connection asks for, so that the
// end of a device ends the watches of another that shares its GPU instance.
const rewatchEvery = 5 * time.Second

// watch is what DCGM updates for a device.
type watch struct {
	since   time.Time // when something was last added
	group   group
	made    bool // the group
	sets    []fieldSet
	fields  gpu.FieldSet              // watched
	refused map[gpu.FieldID]time.Time // not before
}

// refuse leaves a field alone for a while.
func (w *watch) refuse(id gpu.FieldID, now time.Time) {
	if w.refused == nil {
		w.refused = map[gpu.FieldID]time.Time{}
	}
	w.refused[id] = now.Add(retryUnsupported)
}

// profiling says whether a field is one of DCGM's profiling module.
func profiling(id gpu.FieldID) bool { return id >= 1000 && id < 1100 }

// prepare plans the reads of a set of wanted fields and has DCGM watch what it
// does not yet.
func (d *device) prepare(want gpu.FieldSet, now time.Time) error {
	p := plan{want: want, expires: now.Add(retryUnsupported)}
	var plain, prof, readable []gpu.FieldID
	for i, f := range gpu.Fields() {
		switch {
		case !want.Has(gpu.Index(i)):
		case f.Kind == gpu.Label:
			p.labels = append(p.labels, f.ID)
		case f.ID == gpu.XIDErrors:
			p.xids = true
		case now.Before(d.watch.refused[f.ID]):
		case d.watch.fields.Has(gpu.Index(i)):
			readable = append(readable, f.ID)
		case !profiling(f.ID):
			plain = append(plain, f.ID)
		case d.card.profiles(f.ID, now):
			prof = append(prof, f.ID)
		}
	}
	for _, set := range [][]gpu.FieldID{plain, prof} {
		watched, err := d.watchSet(set, now)
		if err != nil {
			return err
		}
		readable = append(readable, watched...)
	}
	for _, id := range readable {
		p.fields = append(p.fields, C.uint16_t(id))
	}
	p.values = make([]value, len(p.fields))
	d.plan = p
	return nil
}

// watchSet watches fields, all at once if DCGM takes them so, else those that
// it takes one by one.
func (d *device) watchSet(ids []gpu.FieldID, now time.Time) ([]gpu.FieldID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err := d.watchTogether(ids)
	if err == nil {
		return ids, nil
	}
	if whole := d.ses.judge(err); isWhole(whole) {
		return nil, whole
	}
	if len(ids) == 1 {
		if _, again := d.watch.refused[ids[0]]; !again {
			d.ses.log.Warn("DCGM does not watch a field", "gpu", d.card.id, "uuid", d.UUID, "field", ids[0].String(), "reason", err)
		}
		d.watch.refuse(ids[0], now)
		return nil, nil
	}
	var watched []gpu.FieldID
	for i := range ids {
		one, err := d.watchSet(ids[i:i+1], now)
		if err != nil {
			return nil, err
		}
		watched = append(watched, one...)
	}
	return watched, nil
}

func (d *device) watchTogether(ids []gpu.FieldID) error {
	name := fmt.Sprintf("gpupilot-%d-%d", d.entity.kind, d.entity.id)
	if !d.watch.made {
		g, err := d.ses.group(name, d.entity)
		if err != nil {
			return err
		}
		d.watch.group, d.watch.made = g, true
	}
	set, err := d.ses.engine.watch(d.watch.group, fmt.Sprintf("%s-%d", name, len(d.watch.sets)), ids,
		d.ses.cfg.Interval.Microseconds(), keep{samples: keepSamples})
	if err != nil {
		return err
	}
	d.watch.since = time.Now()
	d.watch.sets = append(d.watch.sets, set)
	for _, id := range ids {
		if i, ok := gpu.IndexOf(id); ok {
			d.watch.fields.Add(i)
		}
	}
	return nil
}

// release ends a device that is no more. It leaves a device that is being read
// alone: its session's end ends its watches, too.
func (d *device) release() {
	if !d.mu.TryLock() {
		return
	}
	defer d.mu.Unlock()
	d.released = true
	d.unwatch()
}

// unwatch ends the device's watches. What it was refused stays so.
func (d *device) unwatch() {
	for _, set := range d.watch.sets {
		d.ses.unwatch(d.watch.group, set)
	}
	if d.watch.made {
		d.ses.ungroup(d.watch.group)
	}
	d.watch = watch{refused: d.watch.refused}
	d.plan.expires = time.Time{}
}
