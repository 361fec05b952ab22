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
	// can change while the engine stays: a setting, or another profiler's end. It
	// is less than a minute by more than a tick of 10 s.
	retryUnsupported = 45 * time.Second
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
	labels   labels
	clock    clock
}

// labels are the strings of an entity that were asked for.
type labels map[gpu.FieldID]label

// label is a string, or that there is none until retry.
type label struct {
	text  string
	retry time.Time
}

// clock says whether an entity's values are still updated.
type clock struct {
	newest int64     // the newest value's time, by the host engine's clock, in Unix microseconds
	moved  time.Time // when it last was another, by ours
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
	return &device{Device: id, ses: s, card: c, entity: e, watch: watch{
		ses: s, name: fmt.Sprintf("gpupilot-%d-%d", e.kind, e.id), of: []entity{e}, log: s.log.With("gpu", c.id, "uuid", id.UUID),
	}}
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
	return d.labels.read(d.ses, entity{kindGPU, d.card.id}, d.plan.labels, v, now)
}

// readNumbers reads the plan's fields.
func (d *device) readNumbers(v *gpu.Values, now time.Time) error {
	changed, err := d.watch.read(d.entity, d.plan.fields, d.plan.values, &d.clock, v, now)
	if changed {
		d.plan.expires = time.Time{}
	}
	return err
}

// read sets the wanted labels of an entity. They do not change while the driver
// stays, so each is asked for once.
func (l *labels) read(s *session, of entity, ids []gpu.FieldID, v *gpu.Values, now time.Time) error {
	if *l == nil {
		*l = labels{}
	}
	for _, id := range ids {
		known := (*l)[id]
		if known.text == "" && !now.Before(known.retry) {
			texts, err := s.live(of, id)
			if err = s.judge(err); isWhole(err) {
				return err
			}
			known.retry = now.Add(retryUnsupported)
			if err == nil {
				known.text = texts[0]
			}
			(*l)[id] = known
		}
		v.SetLabel(id, known.text)
	}
	return nil
}
