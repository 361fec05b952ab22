// SPDX-License-Identifier: Apache-2.0

// Package hpcjobs reads which batch jobs run on which GPUs from a directory
// that a scheduler's prolog and epilog keep: a file for each GPU, named after
// its index, or index.instance for a MIG instance, with a job on each line.
package hpcjobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// maxFile bounds one file: a GPU has a few jobs.
	maxFile = 64 << 10
	// maxEntries bounds the directory: 16 GPUs have 112 MIG instances at most,
	// and files with other names may lie beside theirs.
	maxEntries = 4096
)

// Files reads files that somebody else puts in place. A file that hangs, or is
// no regular file, is an error.
type Files interface {
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	Names(ctx context.Context, dir string, limit int) ([]string, error)
}

// Mapping is the directory as it was last read.
type Mapping struct {
	dir   string
	files Files
	log   *slog.Logger
	jobs  atomic.Pointer[map[string][]string]
	err   error // of the last reading, for the log; the reader's goroutine owns it
}

// New makes a mapping that is empty until Run.
func New(dir string, files Files, log *slog.Logger) *Mapping {
	m := &Mapping{dir: dir, files: files, log: log}
	m.jobs.Store(&map[string][]string{})
	return m
}

// Jobs are the jobs by file name, each list sorted. Nobody changes what it
// returns.
func (m *Mapping) Jobs() map[string][]string { return *m.jobs.Load() }

// Run reads the directory now and every interval, until ctx is done.
func (m *Mapping) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		m.read(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read keeps what it can read; a directory that cannot be read has no jobs.
func (m *Mapping) read(ctx context.Context) {
	jobs, err := Read(ctx, m.files, m.dir)
	if ctx.Err() != nil {
		return
	}
	m.jobs.Store(&jobs)
	if (err == nil) != (m.err == nil) {
		if err != nil {
			m.log.Warn("job mapping cannot be read whole", "dir", m.dir, "err", err)
		} else {
			m.log.Info("job mapping can be read again", "dir", m.dir)
		}
	}
	m.err = err
}

// Read reads a directory. Files whose name is no GPU's are left out; those that
// cannot be read are in the error, beside the others.
func Read(ctx context.Context, files Files, dir string) (map[string][]string, error) {
	names, err := files.Names(ctx, dir, maxEntries)
	jobs := map[string][]string{}
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("read job mapping: %w", err))
	}
	for _, name := range names {
		if !isGPU(name) || ctx.Err() != nil {
			continue
		}
		text, err := files.Read(ctx, filepath.Join(dir, name), maxFile)
		if err != nil {
			errs = append(errs, err)
		}
		if list := parse(string(text)); len(list) > 0 {
			jobs[name] = list
		}
	}
	return jobs, errors.Join(errs...)
}

// isGPU says whether a file's name is N or N.M.
func isGPU(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.ParseUint(part, 10, 16); err != nil || strconv.FormatUint(n, 10) != part {
			return false
		}
	}
	return strings.Count(name, ".") <= 1
}

// parse gives the jobs of a file, each once, sorted.
func parse(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if job := strings.TrimSpace(line); job != "" {
			out = append(out, job)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
