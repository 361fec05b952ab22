// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// enumerateEvery is the time between two enumerations of the second reader.
	enumerateEvery = 10 * time.Second
	// closePatience is how long closing waits for the goroutine: a call of the
	// library cannot be cancelled.
	closePatience = 3 * time.Second
	// warmUp is the time after which all supported fields have values: DCGM's
	// profiling fields take a second or two.
	warmUp = 5 * time.Second
)

// errOpening is the error until the second reader has enumerated once.
var errOpening = errors.New("DCGM is being opened")

// second is the open second reader. One goroutine enumerates, and each read has
// its own, so that a hang there does not delay the first reader.
type second struct {
	reader Second
	stop   chan struct{}
	once   sync.Once
	done   chan struct{} // closed when the reader is closed
	first  chan struct{} // closed after the first enumeration

	mu    sync.Mutex
	known map[string]*deviceState // devices
	err   error                   // of the last enumeration
	why   string                  // err as text
}

// deviceState is the second reader's state of a device.
type deviceState struct {
	busy  bool         // a read is running
	asked gpu.FieldSet // all fields that were requested
	given gpu.FieldSet // all fields that ever had a value
	first time.Time    // when the first read ended; zero: none has ended
	err   error        // of the last read
	why   string       // err as text
}

// startSecond opens a reader. After each enumeration, it closes the reader if
// enumerated returns true.
func startSecond(reader Second, enumerated func(*second) bool) *second {
	s := &second{
		reader: reader, stop: make(chan struct{}), done: make(chan struct{}), first: make(chan struct{}),
		err: errOpening, why: errOpening.Error(),
	}
	go func() {
		defer close(s.done)
		defer func() { _ = s.reader.Close() }() // an error cannot be handled
		ticker := time.NewTicker(enumerateEvery)
		defer ticker.Stop()
		for n := 0; ; n++ {
			s.enumerate()
			if n == 0 {
				close(s.first)
			}
			if enumerated(s) {
				return
			}
			select {
			case <-ticker.C:
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

func (s *second) enumerate() {
	devices, err := s.reader.Devices()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.known
	s.known, s.err, s.why = make(map[string]*deviceState, len(devices)), err, "DCGM does not know the device"
	if err != nil {
		s.why = fmt.Sprintf("through DCGM: %v", err)
	}
	for _, d := range devices {
		if s.known[d.UUID] = before[d.UUID]; s.known[d.UUID] == nil {
			s.known[d.UUID] = &deviceState{}
		}
	}
}

// close ends the goroutine. It abandons a goroutine that hangs in the library, and reports
// whether the reader is closed.
func (s *second) close() bool {
	s.once.Do(func() { close(s.stop) })
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-s.done:
		return true
	case <-timer.C:
		return false
	}
}

// ready waits for the first enumeration, and returns its error.
func (s *second) ready(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.first:
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) > 0 {
		return nil
	}
	return s.err
}

// closeReason returns why the reader will give none of the needed fields; empty if
// it may. noLibrary reports a missing library.
func (s *second) closeReason(needs map[string]*need, parts bool, prof gpu.FieldSet) (why string, noLibrary bool) {
	s.mu.Lock()
	err, why := s.err, s.why
	s.mu.Unlock()
	if errors.Is(err, gpu.ErrNoLibrary) {
		return why, true
	}
	if parts || err != nil {
		return "", false
	}
	why = ""
	for uuid, n := range needs {
		of := n.asked.Minus(n.unsupported)
		if of.Empty() {
			continue
		}
		profiling := ""
		if rest := of.Minus(prof); rest.Empty() {
			profiling = s.noProfiling(uuid)
		}
		if profiling == "" && s.mayGive(uuid, of) {
			return "", false
		}
		why = cmp.Or(profiling, s.noFields(uuid))
	}
	return why, false
}

// mayGive reports whether the reader gives one of these fields of the device, or
// still may.
func (s *second) mayGive(uuid string, of gpu.FieldSet) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.known[uuid]
	if d == nil {
		return false
	}
	given, unasked := d.given.Intersect(of), of.Minus(d.asked)
	return !given.Empty() || !unasked.Empty() || time.Since(d.first) < warmUp
}

// noProfiling returns why the reader gives no profiling fields of the device;
// empty if it does, or if that is not known yet.
func (s *second) noProfiling(uuid string) string {
	s.mu.Lock()
	opening, why, known := errors.Is(s.err, errOpening), s.why, s.known[uuid] != nil
	s.mu.Unlock()
	switch {
	case opening:
		return ""
	case known:
		if why := s.reader.NoProfiling(uuid); why != "" {
			return "through DCGM: " + why
		}
		return ""
	}
	return why
}

// noFields returns why the reader does not give a requested field of the
// device.
func (s *second) noFields(uuid string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.known[uuid]
	switch {
	case d == nil:
		return s.why
	case d.err != nil:
		return d.why
	case d.first.IsZero():
		return "DCGM has not answered yet"
	}
	return "DCGM does not give it for this device"
}

// givenOf returns the fields of the device that the reader has given.
func (s *second) givenOf(uuid string) gpu.FieldSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.known[uuid]; d != nil {
		return d.given
	}
	return gpu.FieldSet{}
}

// supplement reads fields of a device and adds the missing ones to v. It waits
// for the read for up to patience, and does not start another until that has
// ended.
func (s *second) supplement(uuid string, ask, lacking gpu.FieldSet, v *gpu.Values, patience time.Duration) {
	s.mu.Lock()
	d := s.known[uuid]
	if d == nil || d.busy {
		s.mu.Unlock()
		return
	}
	d.busy = true
	s.mu.Unlock()
	result := make(chan *gpu.Values, 1)
	go func() {
		defer close(result)
		var got gpu.Values
		err := s.reader.Read(uuid, ask, &got)
		s.took(d, ask, &got, err)
		if err == nil {
			result <- &got
		}
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case got := <-result:
		if got != nil {
			v.Add(got, lacking)
		}
	case <-timer.C:
	}
}

// took records the result of a read of a device.
func (s *second) took(d *deviceState, ask gpu.FieldSet, got *gpu.Values, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d.busy, d.asked = false, d.asked.Union(ask)
	if d.first.IsZero() {
		d.first = time.Now()
	}
	if err == nil {
		d.given = d.given.Union(got.Given())
	} else if d.err == nil || d.err.Error() != err.Error() {
		d.why = fmt.Sprintf("through DCGM: %v", err)
	}
	d.err = err
}
