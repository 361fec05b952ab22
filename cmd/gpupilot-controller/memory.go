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
			return fmt.Errorf("it is a number of bytes between 16Mi and 1Ti, such as 512Mi")
		}
		return nil
	}
}

// windowMemory is the value of --window-memory, which was checked with the flags.
func (c *config) windowMemory() int64 {
	q, _ := resource.ParseQuantity(c.memory)
	return q.Value()
}

// cgroupLimits are the files that hold a container's memory limit, of version 2
// and version 1 of cgroups.
var cgroupLimits = []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}

// limitHeap tells Go's garbage collector of the container's memory limit: by
// default the heap may grow to twice what is in use, past the limit, before it
// is collected. A GOMEMLIMIT that is set stays.
func limitHeap(windows int64, log *slog.Logger) {
	limit, ok := containerLimit(cgroupLimits)
	if !ok {
		return
	}
	if windows > limit*3/4 {
		log.Warn("window memory leaves little of the container's memory limit for the rest", "window-memory", windows, "limit", limit)
	}
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	debug.SetMemoryLimit(limit - limit/10)
}

// containerLimit reads the memory limit of the container, if it has one.
func containerLimit(files []string) (int64, bool) {
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		// Version 1 writes no limit as the largest number of whole pages.
		return n, err == nil && n > 0 && n < 1<<60
	}
	return 0, false
}
