// SPDX-License-Identifier: Apache-2.0

package regularfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "12345678")
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.Symlink(file, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	r := New(time.Minute)
	f := func(path, want, wantErr string) {
		t.Helper()
		got, err := r.Read(t.Context(), path, 8)
		if string(got) != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("Read(%s) = %q, %v; want %q, %q", path, got, err, want, wantErr)
		}
	}
	f(file, "12345678", "")
	f(link, "12345678", "")
	f(fifo, "", "not a regular file")
	f("/dev/zero", "", "not a regular file")
	f(dir, "", "not a regular file")
	f(filepath.Join(dir, "none"), "", "no such file")
	f(write(t, filepath.Join(dir, "long"), "123456789"), "", "more than 8 bytes")
	if _, err := r.Read(t.Context(), filepath.Join(dir, "none"), 8); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestNames(t *testing.T) {
	dir := t.TempDir()
	r := New(time.Minute)
	if names, err := r.Names(t.Context(), dir, 2); len(names) != 0 || err != nil {
		t.Errorf("an empty directory: %v, %v", names, err)
	}
	file := write(t, filepath.Join(dir, "b"), "")
	write(t, filepath.Join(dir, "a"), "")
	if names, err := r.Names(t.Context(), dir, 2); !slices.Equal(names, []string{"a", "b"}) || err != nil {
		t.Errorf("two files: %v, %v", names, err)
	}
	write(t, filepath.Join(dir, "c"), "")
	if names, err := r.Names(t.Context(), dir, 2); len(names) != 2 || err == nil {
		t.Errorf("more files than are read: %v, %v", names, err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, fifo, filepath.Join(dir, "none")} {
		if _, err := r.Names(t.Context(), path, 2); err == nil {
			t.Errorf("%s is read as a directory", path)
		}
	}
}

// A file system that hangs costs the timeout once, and nothing while it hangs.
func TestHangingFiles(t *testing.T) {
	dir := t.TempDir()
	paths := make([]string, maxHung+1)
	for i := range paths {
		paths[i] = write(t, filepath.Join(dir, fmt.Sprint(i)), "text")
	}
	good := write(t, filepath.Join(dir, "good"), "text")
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		r := New(time.Second)
		r.open = func(path string, flag int, mode os.FileMode) (*os.File, error) {
			if path != good {
				<-answer
			}
			return os.OpenFile(path, flag, mode)
		}
		read := func(path string, want string, took time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := r.Read(t.Context(), path, 8)
			if err == nil || !strings.Contains(err.Error(), want) || time.Since(start) != took {
				t.Errorf("%v after %v, want %q after %v", err, time.Since(start), want, took)
			}
		}
		read(paths[0], "no answer within 1s", time.Second)
		read(paths[0], "has not returned", 0)
		if got, err := r.Read(t.Context(), good, 8); string(got) != "text" || err != nil {
			t.Errorf("another file: %q, %v", got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := r.Read(ctx, paths[1], 8); !errors.Is(err, context.Canceled) {
			t.Errorf("with the context done: %v", err)
		}
		for _, p := range paths[2:maxHung] {
			read(p, "no answer", time.Second)
		}
		read(paths[maxHung], "of other files", 0)
		close(answer)
		synctest.Wait()
		for _, p := range paths {
			if got, err := r.Read(t.Context(), p, 8); string(got) != "text" || err != nil {
				t.Errorf("after the file system has answered: %q, %v", got, err)
			}
		}
	})
}
