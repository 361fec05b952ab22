// SPDX-License-Identifier: Apache-2.0

package history

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// VolumeConfig says where a Volume is. Zero values take the defaults.
type VolumeConfig struct {
	Dir       string        // is made if it is missing
	MaxBytes  int64         // of this program's segments; twice DefaultMaxBytes
	Retention time.Duration // Retention by default
	Log       *slog.Logger  // nil discards
}

// Volume writes rows to segments in a directory, and reads them back. Each program
// writes to a folder of its own within the directory, which it locks: slot-0, slot-1 and
// so on. It reads those of all programs, so that a restarted or replaced program has the
// whole history.
//
// A program writes once a minute, and waits until the file system has stored it (fsync).
// A crash therefore loses at most the minute that is being written.
type Volume struct {
	cfg  VolumeConfig
	dir  string   // the slot
	lock *os.File // is held until Close
	sync func(*os.File) error

	mu      sync.Mutex
	closed  bool
	file    *os.File       // the newest segment; nil: the next row begins one
	segment *segmentWriter // of file
	written int64          // bytes of file
	stats   VolumeStats
}

// VolumeStats are the figures of a Volume. Counters are since the start.
type VolumeStats struct {
	Bytes    int64  // of this program's segments
	Segments int    // number of them
	Limit    int64  // VolumeConfig.MaxBytes
	Writes   uint64 // successful ones
	Failures uint64 // failed writes: the minute is in memory only
	Damaged  uint64 // segments of which a part could not be read
	Healthy  bool   // the last write succeeded
}

const (
	// maxSlots bounds the programs that share a directory.
	maxSlots   = 16
	slotPrefix = "slot-"
	// segmentName ends the names of segments. It has the version of their format, so that
	// a program neither reads nor removes the segments of another version.
	segmentName = anyFormat + "2"
	anyFormat   = ".minutes"

	// A segment ends at one of these limits. Each segment repeats all names and a full
	// first row of each workload.
	segmentMinutes = 6 * 60
	maxSegment     = 16 << 20 // bytes
	maxNames       = maxSegmentNames / 2
	// flushBytes is when a frame ends before the minute does.
	flushBytes = maxFrame / 2
)

// errLocked: another program has the slot.
var errLocked = errors.New("another program has the lock")

// OpenVolume takes a free slot in a directory.
func OpenVolume(cfg VolumeConfig) (*Volume, error) {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 2*DefaultMaxBytes)
	cfg.Retention = cmp.Or(cfg.Retention, Retention)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	for i := range maxSlots {
		dir := filepath.Join(cfg.Dir, fmt.Sprint(slotPrefix, i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		lock, err := lockFile(filepath.Join(dir, "lock"))
		if errors.Is(err, errLocked) {
			continue
		}
		if err != nil {
			return nil, err
		}
		v := &Volume{cfg: cfg, dir: dir, lock: lock, sync: (*os.File).Sync}
		v.stats.Limit, v.stats.Healthy = cfg.MaxBytes, true
		v.removeUnfinished()
		v.measure()
		return v, nil
	}
	return nil, fmt.Errorf("all %d slots of %s are in use by other programs", maxSlots, cfg.Dir)
}

// Dir returns the folder that this program writes to.
func (v *Volume) Dir() string { return v.dir }

// Stats returns the volume's figures.
func (v *Volume) Stats() VolumeStats {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.stats
}

// Close ends the segment and releases the slot.
func (v *Volume) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	return errors.Join(v.end(), v.lock.Close())
}

// segmentFile is a segment on the disk.
type segmentFile struct {
	path  string
	first int64 // minute
	size  int64
	at    time.Time // of the last write
}

// segments lists the segments of a slot, oldest first. Other files are ignored.
func segments(dir string) []segmentFile {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // an empty slot
	}
	var out []segmentFile
	for _, e := range entries {
		var first int64
		var serial int
		name, ok := strings.CutSuffix(e.Name(), segmentName)
		if _, err := fmt.Sscanf(name, "%010d-%03d", &first, &serial); !ok || err != nil || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil {
			out = append(out, segmentFile{filepath.Join(dir, e.Name()), first, info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(out, func(a, b segmentFile) int {
		return cmp.Or(cmp.Compare(a.first, b.first), cmp.Compare(a.path, b.path))
	})
	return out
}

// slots lists the folders of all programs.
func (v *Volume) slots() []string {
	entries, err := os.ReadDir(v.cfg.Dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), slotPrefix) {
			out = append(out, filepath.Join(v.cfg.Dir, e.Name()))
		}
	}
	return out
}

// measure updates the sizes in stats.
func (v *Volume) measure() {
	v.stats.Bytes, v.stats.Segments = 0, 0
	for _, s := range segments(v.dir) {
		v.stats.Bytes += s.size
		v.stats.Segments++
	}
}

// removeUnfinished removes the files of a rewrite that did not end.
func (v *Volume) removeUnfinished() {
	found, err := filepath.Glob(filepath.Join(v.dir, "*"+unfinished))
	if err != nil {
		return
	}
	for _, path := range found {
		v.remove(path)
	}
}

// remove removes a file. A failure is logged: the next call tries again.
func (v *Volume) remove(path string) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.cfg.Log.Warn("a file of the history cannot be removed", "file", path, "err", err)
	}
}
