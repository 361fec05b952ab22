// SPDX-License-Identifier: Apache-2.0

package aspect

import "time"

// Backoff is the pause after failed requests: half a second, doubled with each
// consecutive failure, up to 15 s.
type Backoff struct {
	Failures int
	Until    time.Time
	Message  string // the last error
}

// Extend follows a failure.
func (b *Backoff) Extend(now time.Time, message string) {
	b.Until = now.Add(min(500*time.Millisecond<<min(b.Failures, 10), 15*time.Second))
	b.Failures++
	b.Message = message
}

// HasEnded reports whether the next request may be made.
func (b *Backoff) HasEnded(now time.Time) bool { return !now.Before(b.Until) }
