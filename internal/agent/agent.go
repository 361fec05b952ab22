// SPDX-License-Identifier: Apache-2.0

// Package agent collects: once per interval it reads every GPU, asks the
// kubelet who holds them, and publishes an immutable gpu.Snapshot. Its HTTP
// surface only ever looks at the last snapshot, so that neither a hung driver
// nor a slow kubelet can hold up an answer.
package agent

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Config says what to collect and how often.
type Config struct {
	Interval time.Duration // between ticks, > 0, until SetInterval
	Node     string        // its hash is the tick's phase, which spreads a fleet's ticks
	Devices  Selection
	Switches Selection    // and their NVLinks, for readers that are a gpu.PartReader
	CPUs     Selection    // and their cores, likewise
	Fields   gpu.FieldSet // what to read of each device, until SetFields
	Version  string       // shown on the index page

	MaxScrapes  int  // answers of /metrics at one time; 0: any number
	RequireGPUs bool // /health is 503 while no GPU can be read
	Pprof       bool // serve /debug/pprof/
}

// Deps are the agent's collaborators.
type Deps struct {
	// Reader reads the GPUs. Each of its blocking calls gets a goroutine.
	Reader gpu.Reader
	// Owners says who holds which device; nil: nobody is asked.
	Owners func(context.Context) ([]gpu.Allocation, error)
	// Pods are this node's pods as the API server last told, and why it does not
	// tell now; nil: it is not asked. It must not block.
	Pods func() (map[gpu.PodName]gpu.Pod, error)
	// Jobs are the batch jobs by GPU ("0") and MIG instance ("0.7"); nil: there
	// are none. It must not block.
	Jobs func() map[string][]string
	// Processes lists the processes that use a device and where they run; nil:
	// nobody is asked. Each device's calls get a goroutine.
	Processes func(uuid string) (gpu.Processes, error)
	// PodNames are pods' names by UID, for those that Pods has not; nil: there
	// are none. It must not block.
	PodNames func() map[string]gpu.PodName
	// WantsHealth says whether the library is to be asked for verdicts on GPUs, where
	// the reader is a gpu.HealthReader; nil: it is not. It must not block.
	WantsHealth func() bool
	// Publish is given each snapshot as it is published, by the tick loop; it
	// must not block.
	Publish func(*gpu.Snapshot, Stats, time.Time)
	// Metrics answers GET /metrics.
	Metrics http.Handler
	Log     *slog.Logger
}

// Stats is what a tick knows beside its snapshot.
type Stats struct {
	Duration time.Duration // from the tick to its snapshot
	Errors   uint64        // failed reads and enumerations since the start
}

// Agent is one node's collector.
type Agent struct {
	cfg      Config
	deps     Deps
	snapshot atomic.Pointer[gpu.Snapshot]
	fields   atomic.Pointer[gpu.FieldSet]
	interval atomic.Int64  // nanoseconds
	repaced  chan struct{} // has a value after SetInterval; of capacity 1
	lastTick atomic.Int64  // UnixNano of when the last tick ended; 0: none has

	lastTopology atomic.Pointer[gpu.Topology] // nil: not read
}

// New makes an agent that does nothing until Run.
func New(cfg Config, deps Deps) *Agent {
	a := &Agent{cfg: cfg, deps: deps, repaced: make(chan struct{}, 1)}
	a.interval.Store(int64(cfg.Interval))
	a.SetFields(cfg.Fields)
	return a
}

// SetFields changes what is read of each device, from the next tick on.
func (a *Agent) SetFields(f gpu.FieldSet) { a.fields.Store(&f) }

// Interval is the time between ticks.
func (a *Agent) Interval() time.Duration { return time.Duration(a.interval.Load()) }

// SetInterval changes the time between ticks, > 0. The next tick is at once.
func (a *Agent) SetInterval(d time.Duration) {
	if a.interval.Swap(int64(d)) == int64(d) {
		return
	}
	select {
	case a.repaced <- struct{}{}:
	default: // the loop has not seen the change before this one
	}
}

// Snapshot is the last one published, nil before the first.
func (a *Agent) Snapshot() *gpu.Snapshot { return a.snapshot.Load() }

// Run collects until ctx is done. Goroutines that sit in a call of the GPU
// library, which cannot be cancelled, end when it returns.
func (a *Agent) Run(ctx context.Context) {
	newLoop(a).run(ctx)
}
