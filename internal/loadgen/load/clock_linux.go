// SPDX-License-Identifier: Apache-2.0

package load

import (
	"time"

	"golang.org/x/sys/unix"
)

// SleepUntil sleeps to within some 50 µs; a timer of the Go runtime may be a millisecond late.
func (hostClock) SleepUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		rest := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&rest, nil) // a signal ends it early: the next slice makes up for it
	}
}
