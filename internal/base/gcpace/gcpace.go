// SPDX-License-Identifier: Apache-2.0

// Package gcpace sets GOGC so that garbage is limited in proportion to the memory that the
// garbage collector scans, and the heap's limit from that of the container.
//
// GOGC is a percentage of the live heap. With the default of 100, a program with 400 MiB of
// samples without pointers accumulates 400 MiB of garbage before a collection. But the cost
// of a collection depends on the scanned memory, and the samples are not scanned. So the
// garbage is limited to a quarter of the scanned memory, as with GOGC=25 in a program
// without the samples.
package gcpace

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// minGarbage is the lowest limit of the garbage, in bytes. It avoids frequent
	// collections of a small heap.
	minGarbage = 8 << 20
	minPercent = 3
	maxPercent = 100
	// burst is how many collections make a burst, and quiet is how long there is none when it
	// has ended.
	burst = 20
	quiet = 5 * time.Second
)

// Run adjusts the garbage collector's percentage after each collection, until ctx ends. If
// the environment sets GOGC, it returns at once.
func Run(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	collected := make(chan struct{}, 1)
	notifyCollection(ctx, collected)
	follow(ctx, collected, debug.FreeOSMemory)
}

// follow adjusts the percentage after each collection, and releases memory after a burst.
func follow(ctx context.Context, collected <-chan struct{}, release func()) {
	ended, n := time.NewTimer(quiet), 0
	defer ended.Stop()
	last := maxPercent
	for {
		if p := Percent(readMetrics()); p != last {
			debug.SetGCPercent(p)
			last = p
		}
		select {
		case <-ctx.Done():
			return
		case <-collected:
			n++
			ended.Reset(quiet)
		case <-ended.C:
			if n >= burst {
				release()
			}
			n = 0
		}
	}
}

// notifyCollection sends after each collection until ctx ends: a collection frees an
// object that nothing uses, and then there is a new one.
func notifyCollection(ctx context.Context, collected chan<- struct{}) {
	runtime.AddCleanup(new([16]byte), func(collected chan<- struct{}) {
		select {
		case collected <- struct{}{}:
		default:
		}
		if ctx.Err() == nil {
			notifyCollection(ctx, collected)
		}
	}, collected)
}

// Percent returns the value of GOGC for a heap with these live and scanned bytes. roots are
// the bytes of stacks and global variables, which are scanned, too.
func Percent(live, scanned, roots uint64) int {
	garbage := max((scanned+roots)/4, minGarbage)
	p := 100 * garbage / max(live+roots, 1)
	return int(min(max(p, minPercent), maxPercent))
}

// readMetrics returns the bytes that the last collection found.
func readMetrics() (live, scanned, roots uint64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64() + s[3].Value.Uint64()
}
