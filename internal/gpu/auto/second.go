// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const (
	// enumerateEvery is the time between two enumerations of the second reader.
	enumerateEvery = 10 * time.Second
	// closePatience is how long its end is waited for: a call of the library
	// cannot be cancelled.
	closePatience = 3 * time.Second
)

// errOpening is what there is until the second reader has enumerated once.
var errOpening = errors.New("DCGM is being opened")

// second is the second reader while it is open. One goroutine enumerates; reads
// have one each, so that what hangs there hides nothing of the first reader's.
type second struct {
	reader Second
	stop   chan struct{}
	once   sync.Once
	done   chan struct{} // closed when the reader is closed
	first  chan struct{} // closed after the first enumeration

	mu    sync.Mutex
	known map[string]bool // devices
	err   error           // of the last enumeration
	busy  map[string]bool // devices that are being read
	given map[string]bool // devices that gave something
}

// startSecond opens a reader. After each enumeration, enumerated says whether
// it is to be closed.
func startSecond(reader Second, enumerated func(*second) bool) *second {
	s := &second{
		reader: reader, stop: make(chan struct{}), done: make(chan struct{}), first: make(chan struct{}),
		err: errOpening, busy: map[string]bool{}, given: map[string]bool{},
	}
	go func() {
		defer close(s.done)
		defer func() { _ = s.reader.Close() }() // nothing is left to do about it
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
	s.known, s.err = make(map[string]bool, len(devices)), err
	for _, d := range devices {
		s.known[d.UUID] = true
	}
}

// close ends the goroutine. Where it hangs in the library, it is left there.
func (s *second) close() {
	s.once.Do(func() { close(s.stop) })
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
	}
}

// ready waits for the first enumeration, and says why nothing can be read.
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

// useless is why nothing that is wanted of it will come; empty: something may.
func (s *second) useless(needy map[string]bool, parts bool) string {
	s.mu.Lock()
	err := s.err
	s.mu.Unlock()
	if errors.Is(err, gpu.ErrNoLibrary) {
		return fmt.Sprintf("through DCGM: %v", err)
	}
	if parts || err != nil {
		return ""
	}
	why := ""
	for uuid := range needy {
		if why = s.noProfiling(uuid); why == "" {
			return ""
		}
	}
	return why
}

// noProfiling is why it gives no profiling fields of the device; empty where it
// does, or where that is not known yet.
func (s *second) noProfiling(uuid string) string {
	s.mu.Lock()
	err, known := s.err, s.known[uuid]
	s.mu.Unlock()
	switch {
	case errors.Is(err, errOpening):
		return ""
	case known:
		if why := s.reader.NoProfiling(uuid); why != "" {
			return "through DCGM: " + why
		}
		return ""
	case err != nil:
		return fmt.Sprintf("through DCGM: %v", err)
	}
	return "DCGM does not know the device"
}

// gives says whether the device's fields have come from it.
func (s *second) gives(uuid string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given[uuid]
}

// supplement adds wanted fields of a device to v. A read that takes longer than
// patience is not waited for, and no other is begun before it has ended.
func (s *second) supplement(uuid string, want gpu.FieldSet, v *gpu.Values, patience time.Duration) {
	s.mu.Lock()
	if !s.known[uuid] || s.busy[uuid] {
		s.mu.Unlock()
		return
	}
	s.busy[uuid] = true
	s.mu.Unlock()
	result := make(chan *gpu.Values, 1)
	go func() {
		var got gpu.Values
		err := s.reader.Read(uuid, want, &got)
		s.mu.Lock()
		s.busy[uuid] = false
		have := got.Fields()
		if err == nil && !have.Empty() {
			s.given[uuid] = true
		}
		s.mu.Unlock()
		if err == nil {
			result <- &got
		}
		close(result)
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case got := <-result:
		if got != nil {
			v.Add(got, want)
		}
	case <-timer.C:
	}
}
