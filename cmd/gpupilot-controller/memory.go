// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"

	"github.com/gpupilot/gpupilot/internal/base/gcpace"
)

// limitHeap limits the heap by the container's memory limit, of which the windows take a
// part.
func limitHeap(windows int64, log *slog.Logger) {
	if limit, ok := gcpace.LimitHeap(); ok && windows > limit*3/4 {
		log.Warn("--window-memory takes more than three quarters of the container's memory limit", "window-memory", windows, "limit", limit)
	}
}
