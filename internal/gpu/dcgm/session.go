// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// session is a host engine between its start and its end. Groups, watches and
// devices are valid during one session.
type session struct {
	*engine
	*vendorlib.Session
	cfg  Config
	xids *gpu.XIDLog
	log  *slog.Logger

	cards map[uint]*card // by DCGM's GPU id; used by enumerate only
	parts parts

	pass   *atomic.Pointer[[]gpu.FieldID] // of the reader; nil: none
	passMu sync.Mutex
	passed *passed // of pass; nil: not looked up yet
}

// open loads the library and starts or connects to a host engine.
func open(cfg Config, xids *gpu.XIDLog, pass *atomic.Pointer[[]gpu.FieldID], log *slog.Logger) (*session, error) {
	e, err := start(cfg.Library, cfg.Remote)
	if err != nil {
		return nil, err
	}
	if cfg.Remote != "" {
		log.Info("connected to a host engine", "address", cfg.Remote, "version", e.server, "libdcgm", e.client)
	}
	open := vendorlib.NewSession("DCGM", func() {
		_ = e.end() // without the engine there is nothing to leave
	})
	return &session{engine: e, Session: open, cfg: cfg, xids: xids, pass: pass, log: log, cards: map[uint]*card{}}, nil
}
