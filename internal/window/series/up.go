// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// maxFailures is the limit of remembered failures of a target. At most one is recorded
// per interval; a target that fails is scraped every 5 s by default.
const maxFailures = 256

// failures are the times of failed scrapes, ns since 1970, ascending.
type failures struct{ stamps []int64 }

func (f *failures) bytes() int64 { return 8 * int64(cap(f.stamps)) }

// Fail records a failed scrape at a time, for Up.
func (t *Target) Fail(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := &t.failures
	if t.closed || f.stamps == nil && t.reserve(ledger.Plain(8*maxFailures)) != ledger.Granted {
		return
	}
	defer t.settle()
	stamp := at.UnixNano()
	if f.stamps == nil {
		f.stamps = make([]int64, 0, maxFailures)
	}
	for len(f.stamps) > 0 && f.stamps[len(f.stamps)-1] >= stamp {
		f.stamps = f.stamps[:len(f.stamps)-1] // the clock was set back
	}
	if len(f.stamps) == maxFailures || len(f.stamps) > 0 && f.stamps[0] < stamp-int64(t.store.cfg.Span) {
		f.stamps = slices.Delete(f.stamps, 0, 1)
	}
	f.stamps = append(f.stamps, stamp)
}

// ReadUp appends for each scrape within [from, to] whether it succeeded: 1 or 0, with
// the time of the collection or of the failure in ns since 1970, oldest first.
func (t *Target) ReadUp(dst []ring.Stamped, from, to int64) []ring.Stamped {
	t.mu.RLock()
	defer t.mu.RUnlock()
	failed := t.failures.stamps
	at, _ := slices.BinarySearch(failed, from)
	failed = failed[at:]
	for i := t.ring.Search(from); i < t.ring.Len(); i++ {
		stamp := t.ring.Stamp(t.ring.Slot(i))
		if stamp > to {
			break
		}
		for len(failed) > 0 && failed[0] < stamp {
			dst, failed = append(dst, ring.Stamped{Stamp: failed[0]}), failed[1:]
		}
		dst = append(dst, ring.Stamped{Stamp: stamp, Value: 1})
	}
	for len(failed) > 0 && failed[0] <= to {
		dst, failed = append(dst, ring.Stamped{Stamp: failed[0]}), failed[1:]
	}
	return dst
}
