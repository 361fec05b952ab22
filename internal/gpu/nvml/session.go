// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// session is NVML between its initialisation and its shutdown. Handles and
// devices are valid during one session.
type session struct {
	*vendorlib.Session
	lib       nvml.Interface
	probes    []probe
	labels    []label
	lent      gpu.FieldSet // the fields that MIG instances take from their GPU
	asks      gpu.FieldSet // the fields that the library can be asked for
	gpm       bool         // the library has GPM's functions
	gpmMIG    bool
	pcie      bool // the library has GetPcieThroughput
	mig       bool
	processes processAbilities
	has       func(symbol string) bool // not for the hot path
	pass      *atomic.Pointer[[]gpu.FieldID]
	driver    string // its version; empty: not known
	events    *events
	count     atomic.Int64 // of GPUs, at the last enumeration
}

// global is held while a library is loaded or closed: go-nvml keeps one table of
// functions in global variables, for all libraries.
var global sync.Mutex

// bound says that go-nvml has called a library. Its functions are bound to that library
// for as long as the process lives: the loader neither unloads it, nor binds them again.
var bound bool // guarded by global

// initialize loads the library and starts NVML. Until that succeeds once, go-nvml does not
// load the library. A file that replaces one that does not fit the driver is therefore
// opened by the next call.
func initialize(lib nvml.Interface, path string) (nvml.Return, error) {
	global.Lock()
	defer global.Unlock()
	t, err := try(path)
	if err != nil {
		return nvml.ERROR_LIBRARY_NOT_FOUND, err
	}
	defer t.close()
	if !bound {
		if ret := t.init(); ret != nvml.SUCCESS {
			return ret, nil
		}
		defer t.shutdown()
		bound = true
	}
	return lib.Init(), nil
}

// shutdown ends NVML. It ignores an error: without the driver there is nothing
// to shut down.
func shutdown(lib nvml.Interface) {
	global.Lock()
	defer global.Unlock()
	_ = lib.Shutdown()
}

// open loads the library, initialises it and finds out which functions it has.
func open(lib nvml.Interface, path string, pass *atomic.Pointer[[]gpu.FieldID]) (*session, error) {
	switch ret, err := initialize(lib, path); {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", gpu.ErrNoLibrary, err)
	case ret == nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, fmt.Errorf("%w: %s", gpu.ErrNoLibrary, path)
	case ret != nvml.SUCCESS:
		return nil, noDriver(ret)
	}
	s := &session{lib: lib, pass: pass, Session: vendorlib.NewSession("NVML", func() { shutdown(lib) })}
	s.has = func(symbol string) bool { return lib.Extensions().LookupSymbol(symbol) == nil }
	if s.has("nvmlSystemGetDriverVersion") {
		s.driver, _ = lib.SystemGetDriverVersion() // without it, some fields are not read
	}
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
	return s, nil
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

// Shut ends the events goroutine and shuts NVML down. See vendorlib.Session.
func (s *session) Shut() error {
	s.events.stop() // the goroutine is in the library for up to eventWait
	return s.Session.Shut()
}
