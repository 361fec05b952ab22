// SPDX-License-Identifier: Apache-2.0

package time

import (
	"sync/atomic"
	"syscall"
)

// shift is by how many seconds the clock is wrong, and when that was last read.
var shift struct{ by, read atomic.Int64 }

// shiftedNow is runtimeNow of a clock that is wrong by the seconds in the file that GPUPILOT_CLOCK names. The file is
// read again every 100 ms. The monotonic clock is right, as after a correction of the other one.
func shiftedNow() (sec int64, nsec int32, mono int64) {
	sec, nsec, mono = runtimeNow()
	if last := shift.read.Load(); mono-last > 1e8 && shift.read.CompareAndSwap(last, mono) {
		shift.by.Store(readShift())
	}
	return sec + shift.by.Load(), nsec, mono
}

// readShift reads the file; 0: there is none.
func readShift() (seconds int64) {
	name, ok := syscall.Getenv("GPUPILOT_CLOCK")
	if !ok {
		return 0
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return 0
	}
	defer syscall.Close(fd)
	var buf [32]byte
	n, _ := syscall.Read(fd, buf[:])
	sign := int64(1)
	for _, b := range buf[:max(0, n)] {
		switch {
		case b == '-':
			sign = -1
		case b >= '0' && b <= '9':
			seconds = seconds*10 + int64(b-'0')
		}
	}
	return sign * seconds
}
