// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// Session is a vendor's library between its init and its shutdown. Calls gives
// it Enter and Leave.
type Session interface {
	Enter() bool
	Leave()
	Broken() bool // the driver, or the host engine, went away
	Shut() error  // lets the library go; it is called once
}

// LibraryConfig is what a backend puts into a Library.
type LibraryConfig[S Session, D any] struct {
	Name      string
	Open      func() (S, error)
	Enumerate func(S) ([]Device, error) // it calls SetKnown
	SessionOf func(D) S
	Read      func(D, FieldSet, *Values) error
}

// Library is what readers over a vendor's library have in common: a session
// that is opened anew when it broke, and devices by UUID that outlive it only
// to say so. It is a Reader but for its name.
type Library[S Session, D any] struct {
	LibraryConfig[S, D]
	xids XIDLog

	mu     sync.Mutex // held by Devices and Close, never by Read
	closed bool

	session atomic.Pointer[S]            // nil while there is none; changed under mu
	known   atomic.Pointer[map[string]D] // by UUID
}

// NewLibrary makes a Library that has no session yet.
func NewLibrary[S Session, D any](cfg LibraryConfig[S, D]) *Library[S, D] {
	l := &Library[S, D]{LibraryConfig: cfg}
	l.known.Store(&map[string]D{})
	return l
}

// Log is where XID errors are counted.
func (l *Library[S, D]) Log() *XIDLog { return &l.xids }

// Session is the one that is open, nil if there is none. It never waits.
func (l *Library[S, D]) Session() *S { return l.session.Load() }

// Known are the devices as of the last enumeration, by UUID. Nobody changes the map.
func (l *Library[S, D]) Known() map[string]D { return *l.known.Load() }

// SetKnown takes over what an enumeration found.
func (l *Library[S, D]) SetKnown(devices map[string]D) { l.known.Store(&devices) }

// Devices opens a session if need be and enumerates. See Reader.
func (l *Library[S, D]) Devices() ([]Device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("the %s reader is closed", l.Name)
	}
	for attempt := 0; ; attempt++ {
		if s := l.session.Load(); s != nil && (*s).Broken() {
			l.session.Store(nil)
			_ = (*s).Shut() // a call that hangs is not in the way of a new session
		}
		if l.session.Load() == nil {
			s, err := l.Open()
			if err != nil {
				return nil, err
			}
			l.session.Store(&s)
		}
		devices, err := l.Enumerate(*l.session.Load())
		// A driver or an engine that was restarted since the last call shows only now.
		if errors.Is(err, ErrNoDriver) && attempt == 0 {
			continue
		}
		return devices, err
	}
}

// Enter finds a device and asks to call the library for it: where there is no
// error, its session's Leave must follow.
func (l *Library[S, D]) Enter(uuid string) (d D, s S, err error) {
	d, ok := l.Known()[uuid]
	if !ok {
		return d, s, fmt.Errorf("%w: %s", ErrUnknownDevice, uuid)
	}
	if s = l.SessionOf(d); s.Broken() || !s.Enter() {
		return d, s, fmt.Errorf("%w (since the devices were enumerated)", ErrNoDriver)
	}
	return d, s, nil
}

// ReadDevice is Reader's Read.
func (l *Library[S, D]) ReadDevice(uuid string, want FieldSet, v *Values) error {
	v.Reset()
	d, s, err := l.Enter(uuid)
	if err != nil {
		return err
	}
	defer s.Leave()
	if want.Empty() {
		return nil
	}
	if err = l.Read(d, want, v); err != nil {
		v.Reset()
	}
	return err
}

// Close lets the library go. Reads that hang in it are not waited for: the last
// one to return lets it go.
func (l *Library[S, D]) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.SetKnown(map[string]D{})
	if s := l.session.Swap(nil); s != nil {
		return (*s).Shut()
	}
	return nil
}
