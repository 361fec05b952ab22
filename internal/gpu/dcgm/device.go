// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// hungAfter is how long a read may take before enumeration leaves the GPU out
// of its calls. A read takes milliseconds, but the first one waits until DCGM
// has read every watched field once.
const hungAfter = 5 * time.Second

// device is the state of one GPU or MIG instance during a session.
type device struct {
	gpu.Device
	vendorlib.Guard
	ses    *session
	card   *card
	entity entity

	watch  watch
	plan   plan
	labels vendorlib.Labels
	clock  clock
}

// clock shows whether an entity's values are still updated.
type clock struct {
	newest  int64     // the newest value's time, by the host engine's clock, in Unix microseconds
	changed time.Time // when newest last changed, by our clock
}

// plan is what one set of wanted fields asks DCGM for. It is made again for
// other wanted fields, and when DCGM starts or stops giving a field.
type plan struct {
	want    gpu.FieldSet
	passed  *passed
	numbers numbers
	labels  []gpu.FieldID
	xids    bool
	expires time.Time // when unsupported fields may be asked for again
}

func newDevice(s *session, id gpu.Device, c *card, e entity) *device {
	return &device{Device: id, ses: s, card: c, entity: e, watch: watch{
		ses: s, name: fmt.Sprintf("gpupilot-%d-%d", e.kind, e.id), of: []entity{e}, log: s.log.With("gpu", c.id, "uuid", id.UUID),
	}}
}

// Identity returns which device this is.
func (d *device) Identity() gpu.Device { return d.Device }

// Session returns the session to which the device belongs.
func (d *device) Session() *session { return d.ses }

// Release ends the device's watches. A watch of an earlier session has ended
// with that session.
func (d *device) Release(open *session) {
	if d.ses == open {
		d.Guard.Release(d.watch.end)
	}
}

// Read fills v with the wanted fields. After an error, v is not used.
func (d *device) Read(want gpu.FieldSet, v *gpu.Values) error {
	now := time.Now()
	if !d.Begin(now) {
		return fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, d.UUID)
	}
	defer d.End()
	if pass := &d.ses.passing().devices; want.Empty() && len(pass.numbers)+len(pass.texts) == 0 {
		return nil
	}
	// A GPU's errors are read even if the GPU cannot be.
	watched, xidErr := d.card.pollXIDs(now)
	if xidErr != nil {
		if xidErr = d.ses.judge(xidErr); errors.Is(xidErr, gpu.ErrNoDriver) {
			return xidErr
		}
	}
	// A lost GPU's values stay in DCGM's cache.
	status, err := d.ses.status(d.card.id)
	if err == nil {
		err = status.gone()
	}
	if err != nil {
		return d.ses.judge(err)
	}
	if pass := d.ses.passing(); d.plan.want != want || d.plan.passed != pass || now.After(d.plan.expires) {
		if err := d.prepare(want, pass, now); err != nil {
			return err
		}
	}
	if err := d.readNumbers(v, now); err != nil {
		return err
	}
	if isWhole(xidErr) {
		return xidErr
	}
	if d.plan.xids && watched {
		v.Set(gpu.XIDErrors, float64(d.ses.xids.Last(d.card.uuid)))
	}
	return d.ses.readLabels(&d.labels, entity{kindGPU, d.card.id}, d.plan.labels, v)
}

// readNumbers reads the plan's fields.
func (d *device) readNumbers(v *gpu.Values, now time.Time) error {
	changed, err := d.watch.read(d.entity, d.plan.numbers, &d.clock, v, now)
	if changed {
		d.plan.expires = time.Time{}
	}
	return err
}

// readLabels sets the wanted labels of an entity, from the cache or from DCGM.
func (s *session) readLabels(cache *vendorlib.Labels, of entity, ids []gpu.FieldID, v *gpu.Values) error {
	now := time.Now()
	for _, id := range ids {
		var failed error
		v.SetLabel(id, cache.Text(id, now, func() (text string, refused bool) {
			texts, err := s.live(of, id)
			switch err = s.judge(err); {
			case isWhole(err):
				failed = err
				return "", false
			case err != nil:
				return "", true
			}
			return texts[0], true
		}))
		if failed != nil {
			return failed
		}
	}
	return nil
}
