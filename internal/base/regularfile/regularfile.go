// SPDX-License-Identifier: Apache-2.0

// Package regularfile reads files and directories that others put in place,
// such as mounted configuration. It refuses files that are not regular, because
// a FIFO or a device may block forever. It has a timeout for file systems that
// hang.
package regularfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// DefaultTimeout is the usual time limit of one file.
	DefaultTimeout = 2 * time.Second
	// maxHung limits the calls that have not returned, each of which holds a
	// thread.
	maxHung = 16
)

// Reader reads files. It abandons a call that hangs, and does not read its path
// again until the call returns. A Reader is safe for concurrent use.
type Reader struct {
	timeout time.Duration
	open    func(path string, flag int, mode os.FileMode) (*os.File, error) // replaced by tests

	mu   sync.Mutex
	hung map[string]bool // paths with a call that has not returned in time
}

// New returns a Reader with a time limit for each file.
func New(timeout time.Duration) *Reader {
	return &Reader{timeout: timeout, open: os.OpenFile, hung: map[string]bool{}}
}

// Read returns a regular file's content. It fails for more than limit bytes.
func (r *Reader) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	return within(ctx, r, path, func() ([]byte, error) { return r.read(path, limit) })
}

// Names returns the names in a directory, sorted, at most limit of them. If
// there are more, it returns an error too.
func (r *Reader) Names(ctx context.Context, dir string, limit int) ([]string, error) {
	return within(ctx, r, dir, func() ([]string, error) { return r.names(dir, limit) })
}

func (r *Reader) read(path string, limit int64) ([]byte, error) {
	f, err := r.opened(path, func(m os.FileMode) error {
		if !m.IsRegular() {
			return fmt.Errorf("not a regular file (%s)", m.Type())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, fmt.Errorf("read %s: more than %d bytes", path, limit)
	}
	return b, err
}

func (r *Reader) names(dir string, limit int) ([]string, error) {
	f, err := r.opened(dir, func(m os.FileMode) error {
		if !m.IsDir() {
			return errors.New("not a directory")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	names, err := f.Readdirnames(limit + 1)
	if errors.Is(err, io.EOF) { // an empty directory
		err = nil
	}
	if len(names) > limit {
		names, err = names[:limit], fmt.Errorf("read %s: more than %d entries", dir, limit)
	}
	slices.Sort(names)
	return names, err
}

// opened opens a file that check accepts. It checks before, because opening
// some devices has effects, and after, because the file may have been replaced.
// O_NONBLOCK keeps the opening of a FIFO from waiting for a writer.
func (r *Reader) opened(path string, check func(os.FileMode) error) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if err := check(info.Mode()); err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	f, err := r.open(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = check(info.Mode())
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return f, nil
}

// within runs f in a separate goroutine and waits until the timeout or until
// ctx is done. A system call cannot be cancelled: f may continue after that.
func within[T any](ctx context.Context, r *Reader, path string, f func() (T, error)) (T, error) {
	var none T
	if err := r.mayRead(path); err != nil {
		return none, err
	}
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	c := &call{path: path}
	go func() {
		v, err := f()
		r.returned(c)
		done <- result{v, err}
	}()
	timer := time.NewTimer(r.timeout)
	defer timer.Stop()
	select {
	case res := <-done:
		return res.value, res.err
	case <-ctx.Done():
		r.leave(c)
		return none, fmt.Errorf("read %s: %w", path, ctx.Err())
	case <-timer.C:
		r.leave(c)
		return none, fmt.Errorf("read %s: no answer within %s", path, r.timeout)
	}
}

// call is one system call in progress; Reader.mu guards it.
type call struct {
	path           string
	returned, left bool
}

func (r *Reader) mayRead(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.hung[path]:
		return fmt.Errorf("read %s: an earlier read has not returned", path)
	case len(r.hung) >= maxHung:
		return fmt.Errorf("read %s: %d reads of other files have not returned", path, len(r.hung))
	}
	return nil
}

// leave stops waiting for a call.
func (r *Reader) leave(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !c.returned {
		c.left = true
		r.hung[c.path] = true
	}
}

func (r *Reader) returned(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.returned = true
	if c.left {
		delete(r.hung, c.path)
	}
}
