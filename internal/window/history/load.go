// SPDX-License-Identifier: Apache-2.0

package history

import (
	"bufio"
	"cmp"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Loaded is what Load read.
type Loaded struct {
	Segments int
	Rows     uint64 // that were added to the store
	Damaged  int    // segments of which the end could not be read
}

// Load adds the rows until now to a store, from all segments of all controllers that share
// the directory. Of several rows of a workload's minute, it takes the first. The rest of a segment after damage is
// skipped, logged and counted.
func (v *Volume) Load(s *Store, now time.Time) Loaded {
	var all []segmentFile
	for _, dir := range v.slots() {
		all = append(all, segments(dir)...)
		v.logOtherFormats(dir)
	}
	slices.SortStableFunc(all, func(a, b segmentFile) int { return cmp.Compare(a.first, b.first) })
	var out Loaded
	for _, f := range all {
		if now.Sub(f.at) > v.cfg.Retention {
			continue
		}
		out.Segments++
		good, err := loadSegment(s, f.path, minuteOf(now), &out.Rows)
		if err != nil {
			out.Damaged++
			v.cfg.Log.Warn("a segment of the history is damaged: the rows after the damage are lost",
				"file", f.path, "readBytes", good, "lostBytes", f.size-good, "err", err)
		}
	}
	s.Expire(now)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stats.Damaged += uint64(out.Damaged)
	return out
}

// logOtherFormats logs the segments of a slot that another version wrote.
func (v *Volume) logOtherFormats(dir string) {
	found, err := filepath.Glob(filepath.Join(dir, "*"+anyFormat+"*"))
	if err != nil {
		return // the directory's name is no pattern
	}
	found = slices.DeleteFunc(found, func(path string) bool { return strings.HasSuffix(path, segmentName) })
	if len(found) > 0 {
		v.cfg.Log.Warn("segments of the history have the format of another version: they are skipped and kept; remove them, or run the version that wrote them",
			"files", len(found), "first", found[0], "last", found[len(found)-1], "format", segmentVersion)
	}
}

// loadSegment adds the rows of a segment up to a minute to a store.
func loadSegment(s *Store, path string, last int64, added *uint64) (good int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // only read from
	return readSegment(bufio.NewReaderSize(f, 64<<10), func(w Workload, minute int64, values []Value) {
		if minute > last {
			return // the clock was set back
		}
		if err := s.Append(w, timeOf(minute), values); err == nil {
			*added++
		} else if !errors.Is(err, ErrOrder) && !errors.Is(err, ErrTime) {
			return // a bad name; the rest of the segment is good
		}
	})
}
