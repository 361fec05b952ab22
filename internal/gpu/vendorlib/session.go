// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ClosePatience is how long closing a session waits for calls in the library.
const ClosePatience = 3 * time.Second

// Session is the time between a library's start and its end. It counts the
// calls that are in the library. A call cannot be cancelled, so the last call
// to return ends a session that was closed. A backend's session embeds it.
type Session struct {
	name   string
	end    func()
	done   chan struct{} // closed after end
	broken atomic.Bool

	mu      sync.Mutex
	inside  int // calls in the library, or about to be
	closing bool
}

// NewSession returns the session of a library that has been started. name is
// the library's, for errors. end ends the library; it is called once.
func NewSession(name string, end func()) *Session {
	return &Session{name: name, end: end, done: make(chan struct{})}
}

// Enter registers a call. It returns false after Shut: then the library must
// not be called. If it returns true, Leave must follow.
func (s *Session) Enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.inside++
	return true
}

// Leave ends a call that Enter registered.
func (s *Session) Leave() {
	s.mu.Lock()
	s.inside--
	last := s.closing && s.inside == 0
	s.mu.Unlock()
	if last {
		s.finish()
	}
}

// Inside returns how many calls are in the library.
func (s *Session) Inside() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside
}

// Break marks the session as unusable: the driver or the host engine is gone.
// The next Reader.Devices opens a new one.
func (s *Session) Break() { s.broken.Store(true) }

// Broken reports whether Break was called.
func (s *Session) Broken() bool { return s.broken.Load() }

// Shut refuses new calls, waits up to ClosePatience for the calls in the
// library, and ends the library. It is called once. If a call hangs for longer,
// Shut returns an error, and the call ends the library when it returns.
func (s *Session) Shut() error { return s.shut(ClosePatience) }

func (s *Session) shut(patience time.Duration) error {
	s.mu.Lock()
	s.closing = true
	last := s.inside == 0
	s.mu.Unlock()
	if last {
		s.finish()
		return nil
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
		return fmt.Errorf("calls still hang in %s; it is shut down when they return", s.name)
	}
}

func (s *Session) finish() {
	s.end()
	close(s.done)
}
