// SPDX-License-Identifier: Apache-2.0

package vendorlib

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// RetryUnsupported is how long a request that the library refused is not
// repeated. The answer can change while the driver stays loaded: a setting, a
// permission, or the end of another profiler. The time is shorter than a minute
// by more than a tick of 10 s, so that such a change shows within a minute.
const RetryUnsupported = 45 * time.Second

// Refusal is the memory that the library refused a request. The zero value is
// no refusal.
type Refusal struct{ until time.Time }

// Record records a refusal at now.
func (r *Refusal) Record(now time.Time) { r.until = now.Add(RetryUnsupported) }

// Holds reports whether a refusal is younger than RetryUnsupported at now.
func (r *Refusal) Holds(now time.Time) bool { return now.Before(r.until) }

// Labels caches the Label fields of a device. They do not change while the
// driver stays loaded, so each is asked for once. The zero value is empty.
type Labels map[gpu.FieldID]*label

type label struct {
	text    string
	refusal Refusal
}

// Text returns a label; empty if the device has none. It calls ask for a label
// that is not in the cache. If ask reports a refusal, the label is asked for
// again after RetryUnsupported, otherwise at the next call.
func (l *Labels) Text(id gpu.FieldID, now time.Time, ask func() (text string, refused bool)) string {
	if *l == nil {
		*l = Labels{}
	}
	known := (*l)[id]
	if known == nil {
		known = &label{}
		(*l)[id] = known
	}
	if known.text == "" && !known.refusal.Holds(now) {
		text, refused := ask()
		known.text = text
		if refused {
			known.refusal.Record(now)
		}
	}
	return known.text
}
