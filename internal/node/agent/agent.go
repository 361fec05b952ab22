// SPDX-License-Identifier: Apache-2.0

// Package agent collects. Once per interval it reads every GPU and the
// kubelet's list of their owners, and publishes an immutable gpu.Snapshot. Its
// HTTP handlers use only the last snapshot, so a hung driver or a slow kubelet
// cannot delay a response.
package agent

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/listen"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Config says what to collect and how often.
type Config struct {
	Interval time.Duration // between ticks, > 0, until SetInterval
	Node     string        // its hash sets the phase of the ticks, so that those of a fleet do not coincide
	Devices  Selection
	Switches Selection     // NvSwitches and their NVLinks, if the reader is a gpu.PartReader
	CPUs     Selection     // CPUs and their cores, if the reader is a gpu.PartReader
	Fields   gpu.FieldSet  // the fields to read of each device, until SetFields
	Passed   []gpu.FieldID // and those that are not in the table
	Version  string        // shown on the index page

	RequireGPUs bool // /health is 503 while no GPU can be read
	Pprof       bool // serve /debug/pprof/
}

// Deps are the agent's collaborators.
type Deps struct {
	// Reader reads the GPUs. Each of its blocking calls gets a goroutine.
	Reader gpu.Reader
	// Owners lists the containers that hold devices; nil: devices have no
	// owners.
	Owners func(context.Context) ([]gpu.Allocation, error)
	// Bus lists the GPUs on the PCI bus; nil, or nil returned: unknown. It is not
	// called concurrently.
	Bus func() []gpu.BusGPU
	// Offered lists the ids of the GPUs that device plugins offer to pods; nil:
	// unknown.
	Offered func(context.Context) ([]gpu.DeviceID, error)
	// Pods returns this node's pods as last received from the API server, and
	// why they are not up to date. nil: pods are not read. It must not block.
	Pods func() (map[gpu.PodName]gpu.Pod, error)
	// Jobs returns the batch jobs by GPU ("0"), MIG instance ("0.7") or UUID, and
	// other names that a scheduler gave; nil: no jobs. It must not block.
	Jobs func() map[string][]string
	// Processes lists the processes that use a device, with their containers;
	// nil: processes are not read. Each device's calls get a goroutine.
	Processes func(uuid string) (gpu.Processes, error)
	// PodNames returns pods' names by UID, for pods that are not in Pods; nil:
	// no names. It must not block.
	PodNames func() map[string]gpu.PodName
	// WantsHealth reports whether to read the library's verdicts on GPUs, if
	// the reader is a gpu.HealthReader; nil: do not read them. It must not
	// block.
	WantsHealth func() bool
	// Publish receives each snapshot when it is published, in the tick loop. It
	// must not block.
	Publish func(*gpu.Snapshot, Stats, time.Time)
	// Fail ends the program with an error, so that it is started again; nil:
	// nothing ends it. It must not block.
	Fail func(error)
	// DriverVersion returns the version of the loaded driver, empty if none is
	// loaded; nil: it is not known. It must not block.
	DriverVersion func() string
	// Lacking returns which lines of the collectors file have no value in a
	// snapshot; nil: unknown.
	Lacking func(*gpu.Snapshot, time.Time) []gpu.Lack
	// Room bounds the concurrent requests; nil: they are not bounded.
	Room *listen.Room
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// Push sets the load of simulated GPUs; nil: nobody can.
	Push http.Handler
	Log  *slog.Logger
}

// Stats is what a tick publishes beside its snapshot.
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
	passes   atomic.Bool   // the reader reads fields that are not in the table
	interval atomic.Int64  // nanoseconds
	repaced  chan struct{} // has a value after SetInterval; of capacity 1
	orders   chan bool     // has true after Release, false after Resume; of capacity 1
	lastTick atomic.Int64  // UnixNano of the end of the last tick; 0: no tick yet

	lastWait atomic.Int64 // UnixNano of when the loop last looked for the first enumeration

	lastTopology atomic.Pointer[gpu.Topology] // nil: not read
}

// New returns an agent that does nothing until Run.
func New(cfg Config, deps Deps) *Agent {
	a := &Agent{cfg: cfg, deps: deps, repaced: make(chan struct{}, 1), orders: make(chan bool, 1)}
	a.interval.Store(int64(cfg.Interval))
	a.SetFields(cfg.Fields, cfg.Passed...)
	return a
}

// SetFields changes the fields that are read of each device, from the next tick on:
// those of the table, and others if the reader is a gpu.Passer.
func (a *Agent) SetFields(f gpu.FieldSet, passed ...gpu.FieldID) {
	others := passed
	if reader, ok := a.deps.Reader.(gpu.Passer); ok {
		others = reader.Pass(passed)
	}
	a.passes.Store(len(others) < len(passed))
	a.fields.Store(&f)
}

// Interval returns the time between ticks.
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

// Snapshot returns the last published snapshot; nil before the first.
func (a *Agent) Snapshot() *gpu.Snapshot { return a.snapshot.Load() }

// Run collects until ctx is done. A goroutine in a call of the GPU library,
// which cannot be cancelled, ends when the call returns.
func (a *Agent) Run(ctx context.Context) {
	newLoop(a).run(ctx)
}
