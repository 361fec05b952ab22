// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// closePatience is how long closing waits for calls that are inside the library.
const closePatience = 3 * time.Second

// session is a host engine between its start and its end. Groups, watches and
// what was learned of devices live as long.
type session struct {
	*engine
	cfg    Config
	xids   *gpu.XIDLog
	log    *slog.Logger
	broken atomic.Bool // the host engine or the driver went away

	cards map[uint]*card // by DCGM's GPU id; of enumeration
	parts parts

	mu      sync.Mutex
	calls   int // that are in the library or will be
	closing bool
	done    chan struct{} // closed after shutdown
}

// open loads the library and starts or connects to a host engine.
func open(cfg Config, xids *gpu.XIDLog, log *slog.Logger) (*session, error) {
	e, err := start(cfg.Library, cfg.Remote)
	if err != nil {
		return nil, err
	}
	return &session{engine: e, cfg: cfg, xids: xids, log: log, cards: map[uint]*card{}, done: make(chan struct{})}, nil
}

// enter asks to call the library. Where it says yes, leave must follow.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.calls++
	return true
}

// leave ends what enter began. The last to leave a closing session shuts the
// library down.
func (s *session) leave() {
	s.mu.Lock()
	s.calls--
	last := s.closing && s.calls == 0
	s.mu.Unlock()
	if last {
		s.shutdown()
	}
}

func (s *session) shutdown() {
	_ = s.end() // fails where the engine is gone: then there is nothing to leave
	close(s.done)
}

// close lets DCGM go. A call that hangs in the library delays that, not the
// caller for long.
func (s *session) close() error {
	s.mu.Lock()
	s.closing = true
	last := s.calls == 0
	s.mu.Unlock()
	if last {
		s.shutdown()
		return nil
	}
	timer := time.NewTimer(closePatience)
	defer timer.Stop()
	select {
	case <-s.done:
		return nil
	case <-timer.C:
		return errors.New("calls still hang in DCGM; it is shut down when they return")
	}
}
