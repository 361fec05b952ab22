// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/filewatch"
)

// filesEvery is how often rule files are read, should a change not have been reported.
const filesEvery = 30 * time.Second

// Files are files with
type Files struct {
	Patterns []string // each a path whose last part may be a pattern
	Manager  *Manager // is offered the rules
	Check    Checker
	Log      *slog.Logger
}

// ArePatterns checks that values are patterns of Files.
func ArePatterns(p *[]string) func() error {
	return func() error {
		var errs []error
		for _, pattern := range *p {
			if _, err := matchFiles(pattern); err != nil {
				errs = append(errs, fmt.Errorf("%q: %w", pattern, err))
			}
		}
		return errors.Join(errs...)
	}
}

// matchFiles returns the files that a pattern matches, sorted.
func matchFiles(pattern string) ([]string, error) {
	if strings.ContainsAny(filepath.Dir(pattern), "*?[") {
		return nil, errors.New("only the last part of the path may be a pattern")
	}
	return filepath.Glob(pattern)
}

// Run reads the files, and reads them again when they change, until ctx is done.
func (f *Files) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, pattern := range f.Patterns {
		if err := filewatch.Watch(ctx, pattern, notify); err != nil && ctx.Err() == nil {
			f.Log.Warn("cannot watch rule files, reading them every 30 s", "files", pattern, "err", err)
		}
	}
	poll := time.NewTicker(filesEvery)
	defer poll.Stop()
	known := map[string]ruleFile{}
	for {
		f.read(known)
		select {
		case <-ctx.Done():
			return
		case <-poll.C:
		case <-changed:
		}
	}
}

// ruleFile is what is known of a rule file.
type ruleFile struct {
	content string
	read    bool // false: it could not be read
}

// read offers the files that have changed, and removes those that have gone. known
// has the files by path.
func (f *Files) read(known map[string]ruleFile) {
	var found []string
	for _, pattern := range f.Patterns {
		files, _ := matchFiles(pattern) // the pattern was checked with the flags
		if len(files) == 0 && !strings.ContainsAny(pattern, "*?[") {
			files = []string{pattern} // a missing file is an error
		}
		found = append(found, files...)
	}
	for _, path := range found {
		content, err := readRuleFile(path)
		if old := known[path]; old.read && err == nil && old.content == string(content) {
			continue
		}
		known[path] = ruleFile{string(content), err == nil}
		var groups []Group
		if err == nil {
			groups, err = Parse(content, f.Check)
		}
		f.Manager.Set(&Source{ID: path, Groups: groups}, err)
	}
	for path := range known {
		if !slices.Contains(found, path) {
			delete(known, path)
			f.Manager.Remove(path)
		}
	}
}

func readRuleFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return b, nil
}
