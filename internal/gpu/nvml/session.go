// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// closePatience is how long closing waits for calls that are inside the
// library. The events goroutine is inside for eventWait at most.
const closePatience = 3 * time.Second

// session is NVML between an init and its shutdown. Handles, and what was
// learned of devices, live as long.
type session struct {
	*gpu.Calls
	lib       nvml.Interface
	probes    []probe
	labels    []label
	lent      gpu.FieldSet // what MIG instances have from their GPU
	asks      gpu.FieldSet // what the library can be asked for
	gpm       bool         // the library has GPM's functions
	gpmMIG    bool
	pcie      bool // the library has GetPcieThroughput
	mig       bool
	processes processAbilities
	has       func(symbol string) bool // not for the hot path
	events    *events
	broken    atomic.Bool // the driver went away
}

// global is held while a library is loaded or closed: go-nvml keeps its table of
// functions in global variables, whichever library it is asked for.
var global sync.Mutex

// initialize loads the library and starts NVML.
func initialize(lib nvml.Interface) nvml.Return {
	global.Lock()
	defer global.Unlock()
	return lib.Init()
}

// shutdown ends NVML. It fails where the driver is gone: then there is nothing to
// shut down.
func shutdown(lib nvml.Interface) {
	global.Lock()
	defer global.Unlock()
	_ = lib.Shutdown()
}

// open loads the library, initialises it and looks at what it has.
func open(lib nvml.Interface, path string, xids *gpu.XIDLog, log *slog.Logger) (*session, error) {
	if err := check(path); err != nil {
		return nil, fmt.Errorf("%w: %w", gpu.ErrNoLibrary, err)
	}
	switch ret := initialize(lib); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s", gpu.ErrNoLibrary, path)
	default:
		return nil, fmt.Errorf("%w: %s", gpu.ErrNoDriver, reason(ret))
	}
	s := &session{lib: lib}
	s.Calls = gpu.NewCalls(func() { shutdown(lib) })
	s.has = func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	s.probes = probes(s.has)
	s.labels = labels(s.has)
	s.lent = lent()
	s.asks = gpu.SetOf(gpu.XIDErrors)
	for i := range s.probes {
		s.asks = s.asks.Union(s.probes[i].fields)
	}
	for _, l := range s.labels {
		s.asks = s.asks.Union(gpu.SetOf(l.id))
	}
	s.gpm = s.hasAll("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
	s.gpmMIG = s.has("nvmlGpmMigSampleGet")
	s.pcie = s.has("nvmlDeviceGetPcieThroughput")
	s.mig = s.hasAll("nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
		"nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
	s.processes = processAbilitiesOf(s)
	s.events = newEvents(s, xids, log)
	return s, nil
}

// check loads the library apart from go-nvml, which would hide why it cannot
// be loaded, and would call even the functions that it needs without looking.
func check(path string) error {
	d := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := d.Open(); err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	for _, either := range [][2]string{
		{"nvmlInit_v2", "nvmlInit"},
		{"nvmlShutdown", "nvmlShutdown"},
		{"nvmlDeviceGetUUID", "nvmlDeviceGetUUID"},
		{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	} {
		if d.Lookup(either[0]) != nil && d.Lookup(either[1]) != nil {
			return fmt.Errorf("%s is not NVML: it lacks %s", path, either[0])
		}
	}
	return nil
}

func (s *session) hasAll(symbols ...string) bool {
	for _, name := range symbols {
		if !s.has(name) {
			return false
		}
	}
	return true
}

func (s *session) hasAny(symbols ...string) bool {
	for _, name := range symbols {
		if s.has(name) {
			return true
		}
	}
	return false
}

// Broken says whether the driver went away.
func (s *session) Broken() bool { return s.broken.Load() }

// Shut ends the events goroutine and shuts NVML down. A call that hangs in
// the library delays the shutdown, not the caller for long.
func (s *session) Shut() error {
	s.events.stop()
	if !s.Close(closePatience) {
		return errors.New("calls still hang in NVML; it is shut down when they return")
	}
	return nil
}
