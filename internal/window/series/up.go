// SPDX-License-Identifier: Apache-2.0

package series

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/window/ledger"
	"github.com/gpupilot/gpupilot/internal/window/ring"
)

// maxFailures is the limit of remembered failures of a target. At most one is recorded
// per interval; a target that fails is scraped every 5 s by default.
const maxFailures = 256

// Fail records a failed scrape at a time, for Up.
func (t *Target) Fail(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil || t.failures.Bytes() == 0 && t.account.reserve(ledger.Plain(8*maxFailures)) != ledger.Granted {
		return
	}
	defer t.settle()
	stamp := at.UnixNano()
	t.failures.Add(stamp, stamp-int64(t.store.cfg.Span), maxFailures)
}

// ReadUp appends for each scrape within [from, to] whether it succeeded: 1 or 0, with
// the time of the collection or of the failure in ns since 1970, oldest first.
func (t *Target) ReadUp(dst []ring.Stamped, from, to int64) []ring.Stamped {
	t.mu.RLock()
	defer t.mu.RUnlock()
	failed, r := t.failures.From(from), &t.columns.ring
	for i, end := r.Between(from, to); i < end; i++ {
		stamp := r.Stamp(r.Slot(i))
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
