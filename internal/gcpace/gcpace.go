// SPDX-License-Identifier: Apache-2.0

// Package gcpace keeps the garbage of a Go program in proportion to what the
// garbage collector scans.
//
// GOGC is relative to all of the heap: at its default of 100, a program with
// 400 MiB of samples, in which there is no pointer, lets 400 MiB of garbage
// pile up before it collects. A collection costs what it scans, which is not the
// samples. So the room for garbage is set to a quarter of what is scanned: the
// collector works as with GOGC=25 in a program without the samples.
package gcpace

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// every is the time between two looks. What is scanned changes as targets and
	// objects come, in minutes.
	every = 5 * time.Second
	// minRoom lets a small heap be collected seldom.
	minRoom    = 16 << 20
	minPercent = 3
	maxPercent = 100
)

// Run sets the garbage collector's percentage again and again until ctx ends. It
// returns at once where GOGC is set: then that holds.
func Run(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := maxPercent
	for {
		if p := Percent(read()); p != last {
			debug.SetGCPercent(p)
			last = p
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Percent is the value of GOGC for a heap of so many live bytes, and so many
// bytes, with stacks and global variables, that a collection scans.
func Percent(live, scanned, roots uint64) int {
	room := max((scanned+roots)/4, minRoom)
	p := 100 * room / max(live+roots, 1)
	return int(min(max(p, minPercent), maxPercent))
}

// read is what the last collection found.
func read() (live, scanned, roots uint64) {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}
	metrics.Read(s)
	return s[0].Value.Uint64(), s[1].Value.Uint64(), s[2].Value.Uint64() + s[3].Value.Uint64()
}
