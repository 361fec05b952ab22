// SPDX-License-Identifier: Apache-2.0

// Package dcgm reads GPUs through NVIDIA's DCGM, which it loads at run time.
// The host engine runs in this process, or in another (nv-hostengine). It gives
// DCGM's profiling fields on GPUs whose driver has no GPM.
//
// It calls libdcgm.so.4 directly and not through go-dcgm. go-dcgm links a test
// framework (1.2 MiB of RSS even without DCGM), copies 4 KiB for each field and
// read three times, and ends the process if the library lacks a function. It
// has one connection in package variables, which cannot be renewed during a
// hung call. A test compares the declarations here with the headers in
// go-dcgm's module.
package dcgm

import (
	"log/slog"
	"time"
)

// Config is the configuration of a Reader.
type Config struct {
	// Library is the path of the library, or a name that the loader searches
	// (LD_LIBRARY_PATH first); empty: libdcgm.so.4. An embedded engine finds
	// its modules through the loader.
	Library string
	// Remote is the address of a host engine: host, host:port, tcp://host:port,
	// unix:///path or vsock://cid:port. Empty: an embedded engine, in this
	// process.
	Remote string
	// Interval is the time between DCGM's updates of the fields; 0: one second.
	Interval time.Duration
	// MIGUUID returns the UUID of a compute instance of a GPU instance (NVML's
	// ids), which DCGM does not give; empty if unknown. nil: always unknown.
	MIGUUID func(parentUUID string, gpuInstance, computeInstance int) string
	// Log receives changes of state; nil: no log.
	Log *slog.Logger
	// PassedLog receives the fields of Pass that are not collected, with the reason; nil: Log.
	PassedLog *slog.Logger
}
