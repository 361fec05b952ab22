// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpupilot/gpupilot/internal/base/gcpace"
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

// limitHeap limits the heap by the container's memory limit, of which the windows take a
// part.
func limitHeap(windows int64, log *slog.Logger) {
	if limit, ok := gcpace.LimitHeap(); ok && windows > limit*3/4 {
		log.Warn("--window-memory takes more than three quarters of the container's memory limit", "window-memory", windows, "limit", limit)
	}
}
