// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/filewatch"
	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

// intervalSource follows the interval of --config-file, unless the flag or its
// variable is given.
type intervalSource struct {
	file  string // empty: nothing is followed
	files *regularfile.Reader
	log   *slog.Logger

	mu      sync.Mutex
	current time.Duration
}

func (c *config) intervalSource(log *slog.Logger) *intervalSource {
	s := &intervalSource{files: regularfile.New(regularfile.DefaultTimeout), log: log, current: c.interval()}
	if c.intervalInFile {
		s.file = c.configFile
	}
	return s
}

// follow calls apply with the interval each time that it has changed. It returns
// when ctx is done and nothing calls apply any more.
func (s *intervalSource) follow(ctx context.Context, apply func(time.Duration)) {
	if s.file == "" {
		return
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	changed := make(chan struct{}, 1)
	if err := filewatch.Watch(ctx, s.file, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}); err != nil {
		s.log.Info("configuration file is not followed; SIGHUP reads its interval again", "err", err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		case <-changed:
		}
		s.reread(ctx, apply)
	}
}

// reread reads the file. An interval that cannot be used changes nothing.
func (s *intervalSource) reread(ctx context.Context, apply func(time.Duration)) {
	text, err := s.files.Read(ctx, s.file, maxText)
	if ctx.Err() != nil {
		return
	}
	var f *yamlFile
	if err == nil {
		f, err = parseYAML(text)
	}
	if err != nil {
		s.log.Warn("configuration file cannot be used; the interval from before stays", "file", s.file, "err", err)
		return
	}
	d, _ := f.interval() // it was checked
	if d == 0 {
		d = time.Duration(defaults().intervalMillis) * time.Millisecond
	}
	d = min(max(d, minIntervalMillis*time.Millisecond), maxIntervalMillis*time.Millisecond)
	s.mu.Lock()
	same := d == s.current
	s.current = d
	s.mu.Unlock()
	if same {
		return
	}
	s.log.Info("interval has changed", "from", s.file, "interval", d)
	apply(d)
}
