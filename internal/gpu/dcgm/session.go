// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"log/slog"
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
	*gpu.Calls
	cfg    Config
	xids   *gpu.XIDLog
	log    *slog.Logger
	broken atomic.Bool // the host engine or the driver went away

	cards map[uint]*card // by DCGM's GPU id; of enumeration
	parts parts
}

// open loads the library and starts or connects to a host engine.
func open(cfg Config, xids *gpu.XIDLog, log *slog.Logger) (*session, error) {
	e, err := start(cfg.Library, cfg.Remote)
	if err != nil {
		return nil, err
	}
	calls := gpu.NewCalls(func() {
		_ = e.end() // fails where the engine is gone: then there is nothing to leave
	})
	return &session{engine: e, cfg: cfg, xids: xids, log: log, cards: map[uint]*card{}, Calls: calls}, nil
}

// Broken says whether the driver, or the host engine, went away.
func (s *session) Broken() bool { return s.broken.Load() }

// Shut lets DCGM go. A call that hangs in the library delays that, not the
// caller for long.
func (s *session) Shut() error {
	if !s.Close(closePatience) {
		return errors.New("calls still hang in DCGM; it is shut down when they return")
	}
	return nil
}
