// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Opened is a backend's session. Session has all of its methods; a backend that
// embeds it may add to Shut.
type Opened interface {
	comparable
	Enter() bool
	Leave()
	Break()
	Broken() bool
	Shut() error
}

// Config is what a backend puts into a Reader.
type Config[S Opened, D Device[S]] struct {
	Name string // of the library, for errors
	// HungAfter is how long a read may take before enumeration no longer calls
	// the library for its GPU.
	HungAfter time.Duration
	// Open loads and starts the library. XID errors are counted in xids, which
	// outlives the session. It fails with gpu.ErrNoLibrary or gpu.ErrNoDriver.
	Open func(xids *gpu.XIDLog) (S, error)
	// Enumerate adds every device to the listing. It fails with
	// gpu.ErrNoDriver if nothing can be enumerated.
	Enumerate func(S, *Listing[S, D]) error
}

// Reader is the common part of a gpu.Reader over a vendor's library: all of it
// but Backend. A backend's Reader embeds it. It opens a new session if the last
// one is broken. It lists the devices by UUID; a device belongs to one session,
// and reads of it fail with gpu.ErrNoDriver after that.
type Reader[S Opened, D Device[S]] struct {
	cfg  Config[S, D]
	xids gpu.XIDLog

	mu     sync.Mutex // held by Devices and Close, never by Read
	closed bool

	session atomic.Pointer[S] // nil: no session is open; changed under mu
	known   atomic.Pointer[devices[D]]
}

// NewReader returns a Reader without a session. It does not load the library.
func NewReader[S Opened, D Device[S]](cfg Config[S, D]) *Reader[S, D] {
	r := &Reader[S, D]{cfg: cfg}
	r.known.Store(&devices[D]{})
	return r
}

// Opened returns the open session; ok is false if none is open. It does not
// block.
func (r *Reader[S, D]) Opened() (s S, ok bool) {
	if p := r.session.Load(); p != nil {
		return *p, true
	}
	return s, false
}

// Known returns the devices of the last enumeration by UUID. The caller must
// not change the map.
func (r *Reader[S, D]) Known() map[string]D { return r.known.Load().byUUID }

// Devices loads the library and opens a session if there is none, and
// enumerates the GPUs, each followed by its MIG instances. A known GPU that is
// lost stays in the list. Each call tries to reach the library or the host
// engine once more, so the caller sets the pace. See gpu.Reader.
func (r *Reader[S, D]) Devices() ([]gpu.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("the %s reader is closed", r.cfg.Name)
	}
	for attempt := 0; ; attempt++ {
		s, err := r.open()
		if err != nil {
			return nil, err
		}
		list, err := r.enumerate(s)
		// A restart of the driver or host engine since the last call shows only
		// now. The second attempt opens a new session.
		if errors.Is(err, gpu.ErrNoDriver) && attempt == 0 {
			continue
		}
		return list, err
	}
}

// open returns the open session, or a new one if there is none or it is broken.
func (r *Reader[S, D]) open() (S, error) {
	if s, ok := r.Opened(); ok {
		if !s.Broken() {
			return s, nil
		}
		r.session.Store(nil)
		_ = s.Shut() // a hung call does not keep a new session from opening
	}
	s, err := r.cfg.Open(&r.xids)
	if err != nil {
		return s, err
	}
	r.session.Store(&s)
	return s, nil
}

// enumerate lists the devices of a session and replaces the known ones.
func (r *Reader[S, D]) enumerate(s S) ([]gpu.Device, error) {
	before := r.known.Load()
	l := &Listing[S, D]{session: s, hungAfter: r.cfg.HungAfter, before: before, after: &devices[D]{byUUID: map[string]D{}}}
	if err := r.cfg.Enumerate(s, l); err != nil {
		if errors.Is(err, gpu.ErrNoDriver) {
			s.Break()
		}
		return nil, err
	}
	for uuid, d := range before.byUUID {
		if l.after.byUUID[uuid] != d {
			d.Release(s) // before its successor is read
		}
	}
	r.known.Store(l.after)
	list := make([]gpu.Device, len(l.after.list))
	for i, d := range l.after.list {
		list[i] = d.Identity()
	}
	return list, errors.Join(l.errs...)
}

// Enter finds a device and enters its session. Without an error, the session's
// Leave must follow.
func (r *Reader[S, D]) Enter(uuid string) (d D, s S, err error) {
	d, ok := r.Known()[uuid]
	if !ok {
		return d, s, fmt.Errorf("%w: %s", gpu.ErrUnknownDevice, uuid)
	}
	if s = d.Session(); s.Broken() || !s.Enter() {
		return d, s, fmt.Errorf("%w (since the devices were enumerated)", gpu.ErrNoDriver)
	}
	return d, s, nil
}

// Read fills v with the wanted fields of a device. See gpu.Reader.
func (r *Reader[S, D]) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	v.Reset()
	d, s, err := r.Enter(uuid)
	if err != nil {
		return err
	}
	defer s.Leave()
	if err = d.Read(want, v); err != nil {
		v.Reset()
	}
	return err
}

// XIDs returns the XID errors of the device seen so far, sorted by code.
func (r *Reader[S, D]) XIDs(uuid string) []gpu.XIDCount { return r.xids.Counts(uuid) }

// Close closes the session. It waits for reads in the library for up to
// ClosePatience; a read that hangs for longer ends the library when it returns.
func (r *Reader[S, D]) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return r.shut()
}

// Release closes the session as Close does. The next call of Devices opens another one. See
// gpu.Releaser.
func (r *Reader[S, D]) Release() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shut()
}

// shut closes the session; the caller holds r.mu.
func (r *Reader[S, D]) shut() error {
	r.known.Store(&devices[D]{})
	if s := r.session.Swap(nil); s != nil {
		return (*s).Shut()
	}
	return nil
}
