// SPDX-License-Identifier: Apache-2.0

// Package hpcjobs reads which batch jobs run on which GPUs from a directory
// that a scheduler's prolog and epilog keep: a file for each GPU, named after
// its index, or index.instance for a MIG instance, with a job on each line.
package hpcjobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// maxFile bounds one file: a GPU has a few jobs.
const maxFile = 64 << 10

// Mapping is the directory as it was last read.
type Mapping struct {
	dir  string
	log  *slog.Logger
	jobs atomic.Pointer[map[string][]string]
	err  error // of the last reading, for the log; the reader's goroutine owns it
}

// New makes a mapping that is empty until Run.
func New(dir string, log *slog.Logger) *Mapping {
	m := &Mapping{dir: dir, log: log}
	m.jobs.Store(&map[string][]string{})
	return m
}

// Jobs are the jobs by file name, each list sorted. Nobody changes what it
// returns.
func (m *Mapping) Jobs() map[string][]string { return *m.jobs.Load() }

// Run reads the directory now and every interval, until ctx is done. A
// directory on a file system that hangs holds up only this.
func (m *Mapping) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		m.read()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read keeps what it can read; a directory that cannot be read has no jobs.
func (m *Mapping) read() {
	jobs, err := Read(m.dir)
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
func Read(dir string) (map[string][]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read job mapping: %w", err)
	}
	jobs := map[string][]string{}
	var errs []error
	for _, e := range entries {
		if !isGPU(e.Name()) {
			continue
		}
		list, err := readFile(filepath.Join(dir, e.Name()))
		if err != nil {
			errs = append(errs, err)
		}
		if len(list) > 0 {
			jobs[e.Name()] = list
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

func readFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	return parse(string(b)), err
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
