// SPDX-License-Identifier: Apache-2.0

package gcpace

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// cgroupLimits are the files with a container's memory limit, in cgroups v2 and v1.
var cgroupLimits = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// LimitHeap sets the memory limit of the garbage collector from the container's limit,
// which it returns in bytes. By default the heap may grow to twice its live size, beyond
// the limit, before it is collected. GOMEMLIMIT has precedence. ok is false for a
// container without a limit.
func LimitHeap() (limit int64, ok bool) {
	if limit, ok = ContainerLimit(); ok && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(limit - limit/10)
	}
	return limit, ok
}

// ContainerLimit returns the memory limit of the container in bytes, if it has one.
func ContainerLimit() (int64, bool) { return containerLimit(cgroupLimits) }

func containerLimit(files []string) (int64, bool) {
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		// In version 1, no limit is the largest multiple of the page size.
		return n, err == nil && n > 0 && n < 1<<60
	}
	return 0, false
}
