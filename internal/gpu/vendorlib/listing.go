// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Device is one GPU or MIG instance during one session S.
type Device[S any] interface {
	comparable
	Identity() gpu.Device
	Session() S
	// Elapsed is Guard's.
	Elapsed(now time.Time) time.Duration
	// Read fills v with the wanted fields. After an error, v is not used.
	Read(want gpu.FieldSet, v *gpu.Values) error
	// Release frees what the library holds for a device that is no longer
	// listed. open is the session that is open now, which need not be the
	// device's.
	Release(open S)
}

// devices are what an enumeration found, in its order and by UUID.
type devices[D any] struct {
	list   []D
	byUUID map[string]D
}

// Listing collects the devices of one enumeration.
type Listing[S comparable, D Device[S]] struct {
	session   S
	hungAfter time.Duration
	before    *devices[D]
	after     *devices[D]
	errs      []error
}

// Known returns the device with this UUID, if the last enumeration found it in
// the same session.
func (l *Listing[S, D]) Known(uuid string) (d D, ok bool) {
	if d, ok = l.before.byUUID[uuid]; ok && d.Session() != l.session {
		var none D
		return none, false
	}
	return d, ok
}

// KnownAt returns the GPU with this index and its MIG instances, as the last
// enumeration found them in the same session. hung reports that a read of one
// of them hangs: further calls would hang the enumeration too.
func (l *Listing[S, D]) KnownAt(index int) (known []D, hung bool) {
	now := time.Now()
	for _, d := range l.before.list {
		if d.Identity().Index == index && d.Session() == l.session {
			known = append(known, d)
			hung = hung || d.Elapsed(now) > l.hungAfter
		}
	}
	return known, hung
}

// Add adds what was found of the GPU with this index. A failed GPU does not
// hide the others: Add returns err only if it is gpu.ErrNoDriver, which ends the
// enumeration.
func (l *Listing[S, D]) Add(index int, found []D, err error) error {
	if errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	if err != nil {
		l.Fail(fmt.Errorf("GPU %d: %w", index, err))
	}
	for _, d := range found {
		l.after.list = append(l.after.list, d)
		l.after.byUUID[d.Identity().UUID] = d
	}
	return nil
}

// Fail adds an error of which the enumeration's result is incomplete. A nil
// error is ignored.
func (l *Listing[S, D]) Fail(err error) {
	if err != nil {
		l.errs = append(l.errs, err)
	}
}

// Found returns the devices added so far, by UUID. The caller must not change
// the map.
func (l *Listing[S, D]) Found() map[string]D { return l.after.byUUID }
