// SPDX-License-Identifier: Apache-2.0

// Package filewatch reports changes of files.
package filewatch

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// debounce is the time without events after which a change is reported: editors
// and the kubelet replace a file in several steps.
const debounce = 200 * time.Millisecond

// watchTimeout is how long a file system may take to begin the watch.
const watchTimeout = 2 * time.Second

// Watch calls changed in a goroutine of its own after each change in the file's
// directory, until ctx is done. It watches the directory, because editors replace
// the file by a new one, and the files of a ConfigMap are links into a directory
// that is replaced. An error means that the directory cannot be watched, or that the
// file system does not answer; in the second case the watch starts once it does.
func Watch(ctx context.Context, file string, changed func()) error {
	dir := filepath.Dir(file)
	started := make(chan error, 1)
	go func() {
		w, err := newWatcher(dir)
		started <- err
		if err == nil {
			forwardChanges(ctx, w, changed)
		}
	}()
	timeout := time.NewTimer(watchTimeout)
	defer timeout.Stop()
	select {
	case err := <-started:
		return err
	case <-ctx.Done():
		return fmt.Errorf("watch %s: %w", dir, ctx.Err())
	case <-timeout.C:
		return fmt.Errorf("watch %s: the file system does not answer within %s", dir, watchTimeout)
	}
}

// newWatcher starts to watch a directory.
func newWatcher(dir string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	if err := w.Add(dir); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	return w, nil
}

func forwardChanges(ctx context.Context, w *fsnotify.Watcher, changed func()) {
	defer func() { _ = w.Close() }()
	quiet := time.NewTimer(debounce)
	quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Events:
			if !ok {
				return
			}
			if e.Op != fsnotify.Chmod {
				quiet.Reset(debounce)
			}
		case _, ok := <-w.Errors: // events were lost: assume a change
			if !ok {
				return
			}
			quiet.Reset(debounce)
		case <-quiet.C:
			changed()
		}
	}
}
