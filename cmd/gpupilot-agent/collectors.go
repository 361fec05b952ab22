// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/gpupilot/gpupilot/internal/base/filewatch"
	"github.com/gpupilot/gpupilot/internal/base/regularfile"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/apiwatch"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
)

// collectorsSource is the source of the collectors: a ConfigMap, a file, or the
// profile's built-in list.
type collectorsSource struct {
	file      string
	extract   func([]byte) (string, error) // the collectors from the file's text; nil: they are the text
	configMap *apiwatch.ConfigMap          // nil: none
	profile   names.Profile
	files     *regularfile.Reader
	log       *slog.Logger

	mu     sync.Mutex
	text   string               // what was read last
	apply  func(collectorsRead) // set by follow
	failed func()
}

// collectorsRead is the collectors that were read from a source.
type collectorsRead struct {
	exposition.Collectors
	invalid int // invalid lines, which are ignored
}

func (c *config) source(profile names.Profile, client *apiwatch.Client, log *slog.Logger) *collectorsSource {
	s := &collectorsSource{file: c.collectors, profile: profile, files: regularfile.New(regularfile.DefaultTimeout), log: log}
	if c.inline {
		s.file, s.extract = c.configFile, inlineCollectors
	}
	if namespace, name, ok := configMapName(c.configMap); ok {
		s.configMap = &apiwatch.ConfigMap{Client: client, Namespace: namespace, Name: name, Key: "metrics"}
	}
	return s
}

// load reads the collectors at the start. The agent starts without the API
// server: the ConfigMap applies as soon as it can be read.
func (s *collectorsSource) load(ctx context.Context) (collectorsRead, error) {
	if s.configMap != nil {
		text, err := s.configMap.Get(ctx)
		if err == nil {
			s.text = text
			return s.parse(text), nil
		}
		s.log.Warn("cannot read the ConfigMap with the collectors; using --collectors or the built-in list until it can be read", "err", err)
	}
	if s.file == "" {
		return collectorsRead{Collectors: exposition.DefaultCollectors(s.profile)}, nil
	}
	text, err := s.readFile(ctx)
	if errors.Is(err, os.ErrNotExist) && shipped(s.file) {
		// dcgm-exporter's image has these files; manifests written for it name them.
		s.log.Info("collectors file does not exist; using the built-in list", "file", s.file)
		p := s.profile
		if filepath.Base(s.file) == "1.x-compatibility-metrics.csv" {
			p = names.Profile1x
		}
		return collectorsRead{Collectors: exposition.DefaultCollectors(p)}, nil
	}
	if err != nil {
		return collectorsRead{}, fmt.Errorf("--collectors: %w", err)
	}
	s.text = text
	return s.parse(s.text), nil
}

// maxText limits a collectors file and a configuration file, in bytes.
const maxText = 4 << 20

// readFile reads the collectors from the file.
func (s *collectorsSource) readFile(ctx context.Context) (string, error) {
	text, err := s.files.Read(ctx, s.file, maxText)
	if err != nil || s.extract == nil {
		return string(text), err
	}
	return s.extract(text)
}

func (s *collectorsSource) parse(text string) collectorsRead {
	c, bad := exposition.ParseCollectors(text)
	for _, e := range bad {
		s.log.Warn("ignored a line of the collectors file", "file", s.name(), "line", e.Line, "text", e.Text, "reason", e.Reason)
	}
	return collectorsRead{c, len(bad)}
}

func (s *collectorsSource) name() string {
	if s.configMap != nil {
		return s.configMap.Namespace + ":" + s.configMap.Name
	}
	return s.file
}

// shipped reports whether path is one of the files in dcgm-exporter's image.
func shipped(path string) bool {
	if filepath.Dir(path) != "/etc/dcgm-exporter" {
		return false
	}
	switch filepath.Base(path) {
	case "default-counters.csv", "dcp-metrics-included.csv", "1.x-compatibility-metrics.csv":
		return true
	}
	return false
}

// follow calls apply with the collectors after each change and each signal on
// again. It calls failed for collectors that cannot be used; the last ones stay
// in force. It returns when ctx is done, after the last of these calls.
func (s *collectorsSource) follow(ctx context.Context, again <-chan os.Signal, apply func(collectorsRead), failed func()) {
	s.mu.Lock()
	s.apply, s.failed = apply, failed
	s.mu.Unlock()
	var wait sync.WaitGroup
	defer wait.Wait()
	switch {
	case s.configMap != nil:
		wait.Go(func() { s.configMap.Follow(ctx, s.take) })
	case s.file != "":
		if err := filewatch.Watch(ctx, s.file, func() { s.reread(ctx, false) }); err != nil {
			s.log.Info("cannot watch the collectors file; send SIGHUP to reload it", "err", err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
			s.reread(ctx, true)
		}
	}
}

// reread reads the file again. asked applies it even if it has not changed. A
// ConfigMap is watched and needs no reread.
func (s *collectorsSource) reread(ctx context.Context, asked bool) {
	if s.configMap != nil || s.file == "" {
		return
	}
	text, err := s.readFile(ctx)
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	same := err == nil && text == s.text
	s.mu.Unlock()
	if same && !asked || errors.Is(err, os.ErrNotExist) && !asked && shipped(s.file) {
		return
	}
	s.take(text, err)
}

// take applies a text as the collectors. It refuses a text without metrics: an
// editor may have emptied the file to write it.
func (s *collectorsSource) take(text string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.text = text
		c := s.parse(text)
		if len(c.Metrics) > 0 {
			s.log.Info("collectors reloaded", "from", s.name(), "metrics", len(c.Metrics), "labels", len(c.Labels), "left_out", c.invalid)
			s.apply(c)
			return
		}
		err = errors.New("no metrics found")
	}
	s.log.Warn("cannot use the new collectors; the last ones stay in force", "from", s.name(), "err", err)
	s.failed()
}
