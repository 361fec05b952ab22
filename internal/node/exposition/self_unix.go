// SPDX-License-Identifier: Apache-2.0

//go:build unix

package exposition

import (
	"syscall"
	"time"
)

func cpuSeconds() (float64, bool) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds(), true
}

func maxFiles() (float64, bool) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, false
	}
	return float64(l.Cur), true
}
