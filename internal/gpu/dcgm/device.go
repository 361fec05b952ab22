// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

/*
#include <stdint.h>
*/
import "C"

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// retryUnsupported is how long a "not supported" is taken for granted. It
	// can change while the engine stays: a setting, or another profiler's end.
	retryUnsupported = 5 * time.Minute
	// hungAfter is how long a read may take before enumeration leaves the GPU
	// alone: a whole read takes milliseconds, the first one waits for DCGM to
	// have read everything once.
	hungAfter = 5 * time.Second
)

// device is what is known of one GPU or MIG instance during a session.
type device struct {
	gpu.Device
	ses    *session
	card   *card
	entity entity

	began atomic.Int64 // when the read in progress began, in Unix nanoseconds; 0: none
	mu    sync.Mutex   // held by Read, which the caller does not call twice at once anyway

	released bool // the device is no more
	watch    watch
	plan     plan
	labels   map[gpu.FieldID]label
	newest   int64     // the newest value's time, by the host engine's clock, in Unix microseconds
	moved    time.Time // when it last was another, by ours
}

// label is a string, or that there is none until retry.
type label struct {
	text  string
	retry time.Time
}

// plan is what one set of wanted fields asks DCGM for. It is made anew when
// something else is wanted, or when what DCGM gives has changed.
type plan struct {
	want    gpu.FieldSet
	fields  []C.uint16_t
	values  []value // one for each field
	labels  []gpu.FieldID
	xids    bool
	expires time.Time // when what is not supported may be tried again
}

func newDevice(s *session, id gpu.Device, c *card, e entity) *device {
	return &device{Device: id, ses: s, card: c, entity: e, labels: map[gpu.FieldID]label{}}
}

// hung says whether a read has been in the library for too long.
func (d *device) hung(now time.Time) bool {
	began := d.began.Load()
	return began != 0 && now.UnixNano()-began > int64(hungAfter)
}

// read fills v. What is in v after an error is of no use.
func (d *device) read(want gpu.FieldSet, v *gpu.Values) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.released {
		return fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, d.UUID)
	}
	now := time.Now()
	d.began.Store(now.UnixNano())
	defer d.began.Store(0)
	// A lost GPU's values stay in DCGM's cache.
	status, err := d.ses.status(d.card.id)
	if err == nil {
		err = status.gone()
	}
	if err != nil {
		return d.ses.judge(err)
	}
	if d.plan.want != want || now.After(d.plan.expires) {
		if err := d.prepare(want, now); err != nil {
			return err
		}
	}
	if err := d.readNumbers(v, now); err != nil {
		return err
	}
	watched, err := d.card.pollXIDs(now)
	if err != nil {
		if err = d.ses.judge(err); isWhole(err) {
			return err
		}
	}
	if d.plan.xids && watched {
		v.Set(gpu.XIDErrors, float64(d.ses.xids.Last(d.card.uuid)))
	}
	return d.readLabels(v, now)
}

// readNumbers reads the plan's fields.
func (d *device) readNumbers(v *gpu.Values, now time.Time) error {
	if len(d.plan.fields) == 0 {
		return nil
	}
	values := d.plan.values
	if err := d.ses.latest(d.entity, d.plan.fields, values); err != nil {
		return d.ses.judge(err)
	}
	var newest int64
	for i := range values {
		newest = max(newest, int64(values[i].ts))
	}
	maxAge := gpu.MaxAge(d.ses.cfg.Interval)
	if newest != d.newest {
		d.newest, d.moved = newest, now
	} else if age := now.Sub(d.moved); age > maxAge {
		return fmt.Errorf("DCGM has not updated its values for %s", age.Round(time.Second))
	}
	for i := range values {
		f := &values[i]
		x := decode(byte(f._type), int(f.status), uint64(f.word))
		switch {
		case f.status == stNotWatched && now.Sub(d.watch.since) > rewatchEvery:
			d.unwatch() // the next read watches anew
		case x.unsupported:
			d.watch.refuse(gpu.FieldID(f.field), now)
			d.plan.expires = time.Time{}
		case x.ok && newest-int64(f.ts) <= maxAge.Microseconds():
			v.Set(gpu.FieldID(f.field), x.number)
		}
	}
	return nil
}

// readLabels sets the wanted labels. They do not change while the driver
// stays, so each is asked for once.
func (d *device) readLabels(v *gpu.Values, now time.Time) error {
	for _, id := range d.plan.labels {
		l := d.labels[id]
		if l.text == "" && !now.Before(l.retry) {
			texts, err := d.ses.live(entity{kindGPU, d.card.id}, id)
			if err = d.ses.judge(err); isWhole(err) {
				return err
			}
			l.retry = now.Add(retryUnsupported)
			if err == nil {
				l.text = texts[0]
			}
			d.labels[id] = l
		}
		v.SetLabel(id, l.text)
	}
	return nil
}
