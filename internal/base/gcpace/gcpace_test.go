// SPDX-License-Identifier: Apache-2.0

package gcpace

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

func TestPercent(t *testing.T) {
	f := func(live, scanned, roots uint64, want int) {
		t.Helper()
		if got := Percent(live*mib, scanned*mib, roots*mib); got != want {
			t.Errorf("%d MiB live, %d scanned: %d, want %d", live, scanned, got, want)
		}
	}
	f(4, 4, 0, 100)     // a small heap: the default
	f(0, 0, 0, 100)     // before the first collection
	f(100, 100, 0, 25)  // all memory is scanned
	f(500, 200, 0, 10)  // most memory is samples
	f(500, 180, 20, 9)  // stacks count as scanned, and GOGC is relative to them, too
	f(10000, 100, 0, 3) // the minimum
}

// The runtime has the metrics. Memory without pointers is live, and not scanned.
func TestReadMetrics(t *testing.T) {
	samples := make([]float32, 64*mib/4)
	runtime.GC()
	live, scanned, roots := readMetrics()
	if live < 64*mib || scanned > live/2 || scanned == 0 || roots == 0 {
		t.Errorf("%d live, %d scanned, %d of roots", live, scanned, roots)
	}
	runtime.KeepAlive(samples)
}

// The percentage follows the heap with the next collection.
func TestRunFollowsCollections(t *testing.T) {
	t.Setenv("GOGC", "")
	defer debug.SetGCPercent(int(percent()))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { Run(ctx) })
	defer running.Wait()
	defer cancel()
	samples := make([]float32, 256*mib/4)
	for range 1000 {
		if runtime.GC(); percent() < maxPercent/2 {
			runtime.KeepAlive(samples)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("after 1000 collections with 256 MiB of samples, GOGC is %d", percent())
}

// Memory is released once, when a burst of collections has ended.
func TestRelease(t *testing.T) {
	defer debug.SetGCPercent(int(percent()))
	synctest.Test(t, func(t *testing.T) {
		collected := make(chan struct{})
		var released atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { follow(ctx, collected, func() { released.Add(1) }) })
		defer running.Wait()
		defer cancel()
		f := func(collections int, every time.Duration, want int64) {
			t.Helper()
			before := released.Load()
			for range collections {
				collected <- struct{}{}
				time.Sleep(every)
			}
			time.Sleep(time.Hour)
			if got := released.Load() - before; got != want {
				t.Errorf("%d collections, one each %v: released %d times, want %d", collections, every, got, want)
			}
		}
		f(0, 0, 0)
		f(burst-1, quiet-1, 0)
		f(burst, quiet-1, 1)
		f(50*burst, time.Millisecond, 1)
		f(10*burst, quiet+1, 0)
	})
}

// GOGC of the environment has precedence.
func TestGOGCHasPrecedence(t *testing.T) {
	t.Setenv("GOGC", "100")
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	before := percent()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Run(ctx)
	if percent() != before {
		t.Error("GOGC was changed")
	}
	t.Setenv("GOGC", "")
	samples := make([]float32, 256*mib/4)
	runtime.GC()
	Run(ctx)
	if got := percent(); got >= before {
		t.Errorf("with 256 MiB of samples GOGC is %d", got)
	}
	runtime.KeepAlive(samples)
}

func percent() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
