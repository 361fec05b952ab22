// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agentrig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the CPU time, user and system, that the agent has used.
func (a *Agent) CPU() (time.Duration, error) { return CPU(a.Pid) }

// CPU is the CPU time, user and system, that a process has used, to the
// nanosecond: that of its CPU-time clock (clock_getcpuclockid(3)).
func CPU(pid int) (time.Duration, error) {
	const sched = 2 // CPUCLOCK_SCHED of the kernel's posix-timers.h
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// RSS returns the agent's resident memory in bytes.
func (a *Agent) RSS() (uint64, error) { return RSS(a.Pid) }

// RSS returns the resident memory of a process in bytes.
func RSS(pid int) (uint64, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in %s", path)
}
