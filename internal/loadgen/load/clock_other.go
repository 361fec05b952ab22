// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package load

import "time"

// SleepUntil does nothing: there is no load on this system.
func (hostClock) SleepUntil(time.Time) {}
