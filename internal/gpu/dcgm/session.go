// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// closePatience is how long closing waits for calls that are inside the library.
const closePatience = 3 * time.Second

// session is DCGM between an init and its shutdown. Groups, watches and what
// was learned of devices live as long.
type session struct {
	cfg    Config
	xids   *xidLog
	log    *slog.Logger
	broken atomic.Bool // the host engine or the driver went away

	cards map[uint]*card // by DCGM's GPU id; of enumeration

	mu      sync.Mutex
	inside  int // calls that are in the library or will be
	closing bool
	done    chan struct{} // closed after shutdown
}

// open loads the library and starts or connects to a host engine.
func open(cfg Config, xids *xidLog, log *slog.Logger) (*session, error) {
	if err := load(cfg.Library); err != nil {
		return nil, err
	}
	if cfg.Remote == "" {
		if _, err := dcgm.Init(dcgm.Embedded); err != nil {
			return nil, fmt.Errorf("%w: start DCGM's engine: %w", gpu.ErrNoDriver, err)
		}
	} else if _, err := dcgm.Init(dcgm.Standalone, address(cfg.Remote)...); err != nil {
		return nil, fmt.Errorf("%w: host engine %s: %w", gpu.ErrNoDriver, cfg.Remote, err)
	}
	dcgm.FieldsInit()
	return &session{cfg: cfg, xids: xids, log: log, cards: map[uint]*card{}, done: make(chan struct{})}, nil
}

// address is a host engine's address as go-dcgm takes it: where and whether
// that is a socket's path. Its own URLs need a function that came with DCGM
// 4.5, so only vsock is left to them.
func address(remote string) []string {
	switch scheme, rest, _ := strings.Cut(remote, "://"); strings.ToLower(scheme) {
	case "vsock":
		return []string{remote}
	case "unix":
		return []string{rest, "1"}
	case "tcp":
		return []string{rest, "0"}
	}
	if strings.HasPrefix(remote, "/") {
		return []string{remote, "1"}
	}
	return []string{remote, "0"}
}

// enter asks to call the library. Where it says yes, leave must follow.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.inside++
	return true
}

// leave ends what enter began. The last to leave a closing session shuts the
// library down.
func (s *session) leave() {
	s.mu.Lock()
	s.inside--
	last := s.closing && s.inside == 0
	s.mu.Unlock()
	if last {
		s.shutdown()
	}
}

func (s *session) shutdown() {
	_ = dcgm.Shutdown() // fails where the engine is gone: then there is nothing to leave
	close(s.done)
}

// close lets DCGM go. A call that hangs in the library delays that, not the
// caller for long.
func (s *session) close() error {
	s.mu.Lock()
	s.closing = true
	last := s.inside == 0
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
