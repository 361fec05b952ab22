// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"os"

	"github.com/gpupilot/gpupilot/internal/base/filewatch"
)

// ReadFile loads the rules of the file. What is wrong with it is logged, and stops
// nothing.
func (s *Server) ReadFile() {
	b, err := os.ReadFile(s.cfg.File)
	if err == nil {
		err = s.Load(b)
	}
	if err != nil {
		s.deps.Log.Error("the adapter configuration has mistakes: the last good one is used; of the first one, the rules without mistakes", "err", err)
		return
	}
	s.deps.Log.Info("adapter configuration loaded")
}

// followFile reads the file again when it changes, until ctx is done.
func (s *Server) followFile(ctx context.Context) {
	if s.cfg.File == "" {
		return
	}
	if err := filewatch.Watch(ctx, s.cfg.File, s.ReadFile); err != nil && ctx.Err() == nil {
		s.deps.Log.Error("changes of the adapter configuration are not noticed", "err", err)
	}
}
