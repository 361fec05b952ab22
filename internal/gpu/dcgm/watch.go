// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#include <stdint.h>
*/
import "C"

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// keepSamples is how many samples DCGM is to keep of a field: the one that is
// read, and the next, which may be on its way.
const keepSamples = 2

// rewatchEvery is the least time between two watches of the same fields. DCGM
// keeps one watch of a field for all that one connection asks for, so that the
// end of a device ends the watches of another that shares its GPU instance.
const rewatchEvery = 5 * time.Second

// watch is what DCGM updates for a device, or for all parts of a kind.
type watch struct {
	ses     *session
	name    string // of the group
	of      []entity
	log     *slog.Logger
	since   time.Time // when something was last added
	group   group
	made    bool // the group
	sets    []fieldSet
	fields  gpu.FieldSet // watched
	refused map[gpu.FieldID]vendorlib.Refusal
}

// refuse records that DCGM does not give a field.
func (w *watch) refuse(id gpu.FieldID, now time.Time) {
	if w.refused == nil {
		w.refused = map[gpu.FieldID]vendorlib.Refusal{}
	}
	var r vendorlib.Refusal
	r.Record(now)
	w.refused[id] = r
}

// isRefused reports whether DCGM refused a field a short time ago.
func (w *watch) isRefused(id gpu.FieldID, now time.Time) bool {
	r := w.refused[id]
	return r.Holds(now)
}

// profiling says whether a field is one of DCGM's profiling module.
func profiling(id gpu.FieldID) bool { return id >= 1000 && id < 1100 }

// prepare plans the reads of a set of wanted fields and has DCGM watch what it
// does not yet.
func (d *device) prepare(want gpu.FieldSet, now time.Time) error {
	p := plan{want: want, expires: now.Add(vendorlib.RetryUnsupported)}
	var plain, prof, readable []gpu.FieldID
	for i, f := range gpu.Fields() {
		switch {
		case !want.Has(gpu.Index(i)):
		case f.Kind == gpu.Label:
			p.labels = append(p.labels, f.ID)
		case f.ID == gpu.XIDErrors:
			p.xids = true
		case d.watch.isRefused(f.ID, now):
		case d.watch.fields.Has(gpu.Index(i)):
			readable = append(readable, f.ID)
		case !profiling(f.ID):
			plain = append(plain, f.ID)
		case d.card.profiles(f.ID, now):
			prof = append(prof, f.ID)
		}
	}
	for _, set := range [][]gpu.FieldID{plain, prof} {
		watched, err := d.watch.add(set, now)
		if err != nil {
			return err
		}
		readable = append(readable, watched...)
	}
	p.fields = fieldList(readable)
	p.values = make([]value, len(p.fields))
	d.plan = p
	return nil
}

func fieldList(ids []gpu.FieldID) []C.uint16_t {
	list := make([]C.uint16_t, len(ids))
	for i, id := range ids {
		list[i] = C.uint16_t(id)
	}
	return list
}

// add watches fields, all at once if DCGM takes them so, else those that it
// takes one by one.
func (w *watch) add(ids []gpu.FieldID, now time.Time) ([]gpu.FieldID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err := w.addTogether(ids)
	if err == nil {
		return ids, nil
	}
	if whole := w.ses.judge(err); isWhole(whole) {
		return nil, whole
	}
	if len(ids) == 1 {
		if _, again := w.refused[ids[0]]; !again {
			w.log.Warn("DCGM does not watch a field", "field", ids[0].String(), "reason", err)
		}
		w.refuse(ids[0], now)
		return nil, nil
	}
	var watched []gpu.FieldID
	for i := range ids {
		one, err := w.add(ids[i:i+1], now)
		if err != nil {
			return nil, err
		}
		watched = append(watched, one...)
	}
	return watched, nil
}

func (w *watch) addTogether(ids []gpu.FieldID) error {
	if !w.made {
		g, err := w.ses.group(w.name, w.of...)
		if err != nil {
			return err
		}
		w.group, w.made = g, true
	}
	set, err := w.ses.engine.watch(w.group, fmt.Sprintf("%s-%d", w.name, len(w.sets)), ids,
		w.ses.cfg.Interval.Microseconds(), keep{samples: keepSamples})
	if err != nil {
		return err
	}
	w.since = time.Now()
	w.sets = append(w.sets, set)
	w.fields = w.fields.Union(gpu.SetOf(ids...))
	return nil
}

// read reads watched fields of an entity into v; values has room for one each.
// It says whether other fields than before can be read, or must be watched.
func (w *watch) read(of entity, fields []C.uint16_t, values []value, c *clock, v *gpu.Values, now time.Time) (changed bool, err error) {
	if len(fields) == 0 {
		return false, nil
	}
	if err := w.ses.latest(of, fields, values); err != nil {
		return false, w.ses.judge(err)
	}
	var newest int64
	for i := range values {
		newest = max(newest, int64(values[i].ts))
	}
	maxAge := gpu.MaxAge(w.ses.cfg.Interval)
	if newest != c.newest {
		c.newest, c.changed = newest, now
	} else if age := now.Sub(c.changed); age > maxAge {
		return false, fmt.Errorf("DCGM has not updated its values for %s", age.Round(time.Second))
	}
	for i := range values {
		f := &values[i]
		x := decode(byte(f._type), int(f.status), uint64(f.word))
		switch {
		case f.status == stNotWatched && now.Sub(w.since) > rewatchEvery:
			w.end() // the next read watches anew
			changed = true
		case x.unsupported:
			w.refuse(gpu.FieldID(f.field), now)
			changed = true
		case x.wrong:
			v.SetNone()
		case x.ok && newest-int64(f.ts) <= maxAge.Microseconds():
			if x.number.Whole {
				v.SetInt(gpu.FieldID(f.field), x.number.Int)
			} else {
				v.Set(gpu.FieldID(f.field), x.number.Float)
			}
		}
	}
	return changed, nil
}

// end ends the watches. What was refused stays so.
func (w *watch) end() {
	for _, set := range w.sets {
		w.ses.unwatch(w.group, set)
	}
	if w.made {
		w.ses.ungroup(w.group)
	}
	w.sets, w.made, w.fields, w.since = nil, false, gpu.FieldSet{}, time.Time{}
}
