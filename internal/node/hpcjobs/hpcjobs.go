// SPDX-License-Identifier: Apache-2.0

// Package hpcjobs reads the batch jobs of GPUs from a directory that a scheduler's
// prolog and epilog maintain. It has one file per GPU, named by its index, by
// index.instance for a MIG instance, or by the UUID of either, with one job per line.
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
	// maxEntries bounds the entries of the directory: 16 GPUs have at most 112 MIG
	// instances, and the directory may have other files.
	maxEntries = 4096
)

// Files reads files that other programs write. A read that hangs, or a file that is not
// regular, is an error.
type Files interface {
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
	Names(ctx context.Context, dir string, limit int) ([]string, error)
}

// Mapping holds the jobs of the last read of the directory.
type Mapping struct {
	dir     string
	files   Files
	log     *slog.Logger
	jobs    atomic.Pointer[map[string][]string]
	lastErr error // of the last read; owned by Run's goroutine
}

// New makes an empty mapping. Run fills it.
func New(dir string, files Files, log *slog.Logger) *Mapping {
	m := &Mapping{dir: dir, files: files, log: log}
	m.jobs.Store(&map[string][]string{})
	return m
}

// Jobs returns the sorted jobs by file name. Files whose name cannot be that of a GPU
// have no jobs; those of an empty file of a GPU are left out. The result must not be
// changed.
func (m *Mapping) Jobs() map[string][]string { return *m.jobs.Load() }

// Run reads the directory now and every interval, until ctx is done.
func (m *Mapping) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		m.refresh(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// refresh reads the directory. Files that cannot be read have no jobs.
func (m *Mapping) refresh(ctx context.Context) {
	jobs, err := Read(ctx, m.files, m.dir)
	if ctx.Err() != nil {
		return
	}
	m.jobs.Store(&jobs)
	if (err == nil) != (m.lastErr == nil) {
		if err != nil {
			m.log.Warn("cannot read all files of the job mapping", "dir", m.dir, "err", err)
		} else {
			m.log.Info("job mapping can be read again", "dir", m.dir)
		}
	}
	m.lastErr = err
}

// Read reads a directory, without its hidden files. See Mapping.Jobs. It returns the
// readable files together with the errors of the others.
func Read(ctx context.Context, files Files, dir string) (map[string][]string, error) {
	names, err := files.Names(ctx, dir, maxEntries)
	jobs := map[string][]string{}
	var errs []error
	if err != nil {
		errs = append(errs, fmt.Errorf("read job mapping: %w", err))
	}
	for _, name := range names {
		if strings.HasPrefix(name, ".") || ctx.Err() != nil {
			continue
		}
		if !isDeviceName(name) {
			jobs[name] = nil
			continue
		}
		text, err := files.Read(ctx, filepath.Join(dir, name), maxFile)
		if err != nil {
			errs = append(errs, err)
		}
		if list := parseJobs(string(text)); len(list) > 0 {
			jobs[name] = list
		}
	}
	return jobs, errors.Join(errs...)
}

// isDeviceName reports whether a file's name is N, N.M or a UUID.
func isDeviceName(name string) bool {
	if strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		return true
	}
	for part := range strings.SplitSeq(name, ".") {
		if n, err := strconv.ParseUint(part, 10, 16); err != nil || strconv.FormatUint(n, 10) != part {
			return false
		}
	}
	return strings.Count(name, ".") <= 1
}

// parseJobs returns the jobs of a file, sorted and without duplicates.
func parseJobs(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if job := strings.TrimSpace(line); job != "" {
			out = append(out, job)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
