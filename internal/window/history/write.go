// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// unfinished is the end of the names of segments that a rewrite has not completed.
const unfinished = ".tmp"

// addRow takes the row of one workload.
type addRow = func(w Workload, values []Value)

// Write writes the rows of a minute, for which rows calls add, and waits until they are
// stored. After a failure the next minute begins a new segment.
func (v *Volume) Write(at time.Time, rows func(add addRow)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	err := v.write(minuteOf(at), rows)
	v.stats.Healthy = err == nil
	if err != nil {
		v.stats.Failures++
		_ = v.end() // the first error says why
		v.measure()
		return fmt.Errorf("write the history of %s to %s: %w", at.UTC().Format("15:04"), v.dir, err)
	}
	v.stats.Writes++
	return nil
}

func (v *Volume) write(minute int64, rows func(add addRow)) error {
	if v.closed {
		return fs.ErrClosed
	}
	if v.file != nil && (minute-v.segment.first >= segmentMinutes || v.isFull()) {
		if err := v.end(); err != nil {
			return err
		}
	}
	if v.file == nil {
		if err := v.begin(minute, segmentName); err != nil {
			return err
		}
	}
	var failed error
	rows(func(w Workload, values []Value) {
		v.segment.add(w, minute, values)
		if v.segment.size() >= flushBytes && failed == nil {
			failed = v.flush()
		}
	})
	if failed != nil {
		return failed
	}
	if err := v.flush(); err != nil {
		return err
	}
	return v.sync(v.file)
}

func (v *Volume) isFull() bool { return v.written > maxSegment || v.segment.names > maxNames }

// begin makes a segment.
func (v *Volume) begin(minute int64, suffix string) error {
	for serial := range 1000 {
		name := filepath.Join(v.dir, fmt.Sprintf("%010d-%03d%s", minute, serial, segmentName))
		if _, err := os.Lstat(name); err == nil {
			continue // of an earlier program
		}
		f, err := os.OpenFile(strings.TrimSuffix(name, segmentName)+suffix, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		var header []byte
		v.file, v.written = f, 0
		v.segment, header = newSegment(minute)
		v.stats.Segments++
		if err := v.append(header); err != nil {
			return err
		}
		return v.syncDir()
	}
	return fmt.Errorf("%s has 1000 segments of one minute", v.dir)
}

// flush writes the current frame.
func (v *Volume) flush() error { return v.append(v.segment.finish()) }

func (v *Volume) append(b []byte) error {
	n, err := v.file.Write(b)
	v.written += int64(n)
	v.stats.Bytes += int64(n)
	return err
}

// end closes the current segment.
func (v *Volume) end() error {
	if v.file == nil {
		return nil
	}
	f := v.file
	v.file, v.segment = nil, nil
	return f.Close()
}

// syncDir waits until the names of the segments are stored.
func (v *Volume) syncDir() error {
	d, err := os.Open(v.dir)
	if err != nil {
		return err
	}
	return errors.Join(v.sync(d), d.Close())
}

// Clean removes segments that are older than the retention, of this program and of those
// that have ended. If this program's segments are larger than the limit, it writes the
// store's rows to new segments, and removes the old ones: what the store has dropped
// because of its memory limit, which is fair between namespaces, is then dropped here.
func (v *Volume) Clean(s *Store, now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return fs.ErrClosed
	}
	for _, dir := range v.slots() {
		v.removeOld(dir, now)
	}
	v.measure()
	if v.stats.Bytes <= v.cfg.MaxBytes {
		return nil
	}
	err := v.rewrite(s, now)
	if err != nil {
		v.stats.Failures++
		v.removeUnfinished()
		err = fmt.Errorf("rewrite the history in %s: %w", v.dir, err)
	}
	v.measure()
	v.removeExcess()
	return err
}

// removeOld removes old segments of a slot, unless another program uses it.
func (v *Volume) removeOld(dir string, now time.Time) {
	if dir != v.dir {
		lock, err := lockFile(filepath.Join(dir, "lock"))
		if err != nil {
			return
		}
		defer func() { _ = lock.Close() }() // nothing was written
	}
	for _, f := range segments(dir) {
		if now.Sub(f.at) > v.cfg.Retention && !v.isOpen(f.path) {
			v.remove(f.path)
		}
	}
}

func (v *Volume) isOpen(path string) bool { return v.file != nil && v.file.Name() == path }

// removeExcess removes the oldest segments above the limit. It has an effect only if a
// rewrite failed.
func (v *Volume) removeExcess() {
	for _, f := range segments(v.dir) {
		if v.stats.Bytes > v.cfg.MaxBytes && !v.isOpen(f.path) {
			v.remove(f.path)
			v.stats.Bytes -= f.size
			v.stats.Segments--
		}
	}
}

// rewrite replaces this program's segments by the rows of the store.
func (v *Volume) rewrite(s *Store, now time.Time) error {
	if err := v.end(); err != nil {
		return err
	}
	old := segments(v.dir)
	begin := now.Add(-v.cfg.Retention)
	var finished []string
	finish := func() error {
		if v.file == nil {
			return nil
		}
		finished = append(finished, v.file.Name())
		return errors.Join(v.flush(), v.sync(v.file), v.end())
	}
	for _, w := range s.Workloads() {
		if v.file != nil && v.isFull() {
			if err := finish(); err != nil {
				return err
			}
		}
		if v.file == nil {
			if err := v.begin(minuteOf(begin), unfinished); err != nil {
				return err
			}
		}
		for row := range s.Rows(w, begin, now) {
			v.segment.add(w, minuteOf(row.At), row.Values)
			if v.segment.size() < flushBytes {
				continue
			}
			if err := v.flush(); err != nil {
				return err
			}
		}
		v.segment.forget(w)
	}
	if err := finish(); err != nil {
		return err
	}
	for _, path := range finished {
		if err := os.Rename(path, strings.TrimSuffix(path, unfinished)+segmentName); err != nil {
			return err
		}
	}
	for _, f := range old {
		v.remove(f.path)
	}
	return v.syncDir()
}
