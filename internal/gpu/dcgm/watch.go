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
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// keepSamples is how many samples DCGM keeps of a field: the one that is read, and
// the next one.
const keepSamples = 2

// rewatchEvery is the least time between two watches of the same fields. DCGM has
// one watch of a field for each connection. The end of a device therefore also
// ends the watches of another device that shares its GPU instance.
const rewatchEvery = 5 * time.Second

// watch is the fields that DCGM updates for a device, or for all parts of a kind.
type watch struct {
	ses     *session
	name    string // of the group
	of      []entity
	log     *slog.Logger
	since   time.Time // when a field was last added
	group   group
	made    bool // the group
	sets    []fieldSet
	fields  map[gpu.FieldID]bool // watched
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

// profiling reports whether a field comes from DCGM's profiling module.
func profiling(id gpu.FieldID) bool { return id >= 1000 && id < 1100 }

// prepare plans the reads of wanted fields, and starts the watches of those that DCGM
// does not watch yet.
func (d *device) prepare(want gpu.FieldSet, pass *passed, now time.Time) error {
	p := plan{want: want, passed: pass, expires: now.Add(vendorlib.RetryUnsupported)}
	numbers := slices.Clone(pass.devices.numbers)
	p.labels = append(p.labels, pass.devices.texts...)
	for i, f := range gpu.Fields() {
		switch {
		case !want.Has(gpu.Index(i)):
		case f.Kind == gpu.Label:
			p.labels = append(p.labels, f.ID)
		case f.ID == gpu.XIDErrors:
			p.xids = true
		default:
			numbers = append(numbers, f.ID)
		}
	}
	var plain, prof, readable []gpu.FieldID
	for _, id := range numbers {
		switch {
		case d.watch.isRefused(id, now):
		case d.watch.fields[id]:
			readable = append(readable, id)
		case !profiling(id):
			plain = append(plain, id)
		case d.card.profiles(id, now):
			prof = append(prof, id)
		}
	}
	for _, set := range [][]gpu.FieldID{plain, prof} {
		watched, err := d.watch.add(set, now)
		if err != nil {
			return err
		}
		readable = append(readable, watched...)
	}
	p.numbers = newNumbers(readable)
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

// add watches fields: all with one call, or each with its own call if DCGM
// refuses the first. It returns the fields that DCGM watches.
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
			w.log.Warn("DCGM refuses to watch a field", "field", ids[0].String(), "reason", err)
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
	if w.fields == nil {
		w.fields = make(map[gpu.FieldID]bool, len(ids))
	}
	for _, id := range ids {
		w.fields[id] = true
	}
	return nil
}

// numbers are watched fields to be read.
type numbers struct {
	fields []C.uint16_t
	values []value // room for one value of each field
}

func newNumbers(ids []gpu.FieldID) numbers {
	return numbers{fieldList(ids), make([]value, len(ids))}
}

// isEvent reports whether a field is the code of a switch's last error. DCGM has a value
// of it from the first error on, with the time of the error; before that, it is 0.
func isEvent(id gpu.FieldID) bool { return id == gpu.SwitchFatal || id == gpu.SwitchNonFatal }

// read reads watched fields of an entity into v. changed reports that other
// fields can be read than before, or must be watched.
func (w *watch) read(of entity, n numbers, c *clock, v *gpu.Values, now time.Time) (changed bool, err error) {
	if len(n.fields) == 0 {
		return false, nil
	}
	values := n.values
	if err := w.ses.latest(of, n.fields, values); err != nil {
		return false, w.ses.judge(err)
	}
	var newest int64
	updated := false // a field is updated at each interval
	for i := range values {
		if !isEvent(gpu.FieldID(values[i].field)) {
			newest, updated = max(newest, int64(values[i].ts)), true
		}
	}
	maxAge := gpu.MaxAge(w.ses.cfg.Interval)
	if !updated {
		c.changed = now
	}
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
			w.end() // the next read starts a new watch
			changed = true
		case x.unsupported:
			w.refuse(gpu.FieldID(f.field), now)
			changed = true
		case x.wrong:
			v.SetNone()
		case isEvent(gpu.FieldID(f.field)):
			if !x.ok {
				x.number = gpu.Whole(0)
			}
			v.Take(gpu.FieldID(f.field), x.number)
		case x.ok && newest-int64(f.ts) <= maxAge.Microseconds():
			v.Take(gpu.FieldID(f.field), x.number)
		}
	}
	return changed, nil
}

// end ends the watches. Refusals stay in force.
func (w *watch) end() {
	for _, set := range w.sets {
		w.ses.unwatch(w.group, set)
	}
	if w.made {
		w.ses.ungroup(w.group)
	}
	w.sets, w.made, w.fields, w.since = nil, false, nil, time.Time{}
}
