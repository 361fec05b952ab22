// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// The bounds of --window-memory.
const (
	minWindowMemory = 16 << 20
	maxWindowMemory = 1 << 40
)

func isMemory(p *string) func() error {
	return func() error {
		q, err := resource.ParseQuantity(*p)
		if err != nil || q.Value() < minWindowMemory || q.Value() > maxWindowMemory {
			return fmt.Errorf("want a number of bytes from 16Mi to 1Ti, such as 512Mi")
		}
		return nil
	}
}

// windowMemory returns the value of --window-memory, which has been validated.
func (c *config) windowMemory() int64 {
	q, _ := resource.ParseQuantity(c.memory)
	return q.Value()
}

// cgroupLimits are the files with a container's memory limit, in cgroups v2 and v1.
var cgroupLimits = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitHeap sets the memory limit of Go's garbage collector from the container's limit.
// By default the heap may grow to twice its live size, beyond the limit, before it is
// collected. GOMEMLIMIT has precedence.
func limitHeap(windows int64, log *slog.Logger) {
	limit, ok := containerLimit(cgroupLimits)
	if !ok {
		return
	}
	if windows > limit*3/4 {
		log.Warn("--window-memory takes more than three quarters of the container's memory limit", "window-memory", windows, "limit", limit)
	}
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	debug.SetMemoryLimit(limit - limit/10)
}

// containerLimit returns the memory limit of the container, if it has one.
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
