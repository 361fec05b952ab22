// SPDX-License-Identifier: Apache-2.0

// Package filewatch tells when a file may have changed.
package filewatch

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// debounce is how long nothing may happen before a change is told: editors and
// the kubelet replace a file in several steps.
const debounce = 200 * time.Millisecond

// watchTimeout is how long a file system may take to begin the watch.
const watchTimeout = 2 * time.Second

// Follow calls changed, in its own goroutine, some time after something in the
// file's directory has changed, until ctx is done. It watches the directory,
// because a file that is replaced is another file, and a ConfigMap's file is a
// link into a directory that is replaced. An error means that it cannot, or
// that the file system does not answer; in the second case changes are told once
// it does.
func Follow(ctx context.Context, file string, changed func()) error {
	dir := filepath.Dir(file)
	begun := make(chan error, 1)
	go func() {
		w, err := watch(dir)
		begun <- err
		if err == nil {
			follow(ctx, w, changed)
		}
	}()
	timeout := time.NewTimer(watchTimeout)
	defer timeout.Stop()
	select {
	case err := <-begun:
		return err
	case <-ctx.Done():
		return fmt.Errorf("watch %s: %w", dir, ctx.Err())
	case <-timeout.C:
		return fmt.Errorf("watch %s: no answer within %s", dir, watchTimeout)
	}
}

// watch begins to watch a directory.
func watch(dir string) (*fsnotify.Watcher, error) {
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

func follow(ctx context.Context, w *fsnotify.Watcher, changed func()) {
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
		case _, ok := <-w.Errors: // some events are lost: look
			if !ok {
				return
			}
			quiet.Reset(debounce)
		case <-quiet.C:
			changed()
		}
	}
}
