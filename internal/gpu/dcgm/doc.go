// SPDX-License-Identifier: Apache-2.0

// Package dcgm reads GPUs through NVIDIA's DCGM, which it loads at run time:
// an engine in this process, or one that runs beside it (nv-hostengine). It
// gives DCGM's profiling fields on GPUs whose driver has no GPM.
//
// It calls libdcgm.so.4 by itself, not through go-dcgm: that links a test
// framework into its users (1.2 MiB of RSS though DCGM is not used), copies
// 4 KiB a field and read three times, ends the process where the library lacks
// a function, and has one connection in package variables, which a call that
// hangs keeps from being renewed. A test holds what is declared here to the
// headers in go-dcgm's module.
package dcgm

import (
	"log/slog"
	"time"
)

// Config says how to reach DCGM.
type Config struct {
	// Library is the path of the library, or a name that the loader searches
	// (LD_LIBRARY_PATH first); empty: libdcgm.so.4. An engine of our own loads
	// its modules as the loader finds them.
	Library string
	// Remote is the address of a host engine: host, host:port, tcp://host:port,
	// unix:///path or vsock://cid:port. Empty: an engine of our own, in this
	// process.
	Remote string
	// Interval is how often DCGM is to update the fields; 0: every second.
	Interval time.Duration
	// MIGUUID tells the UUID of a compute instance of a GPU instance (NVML's
	// ids), which DCGM does not; empty where it cannot. nil: nobody can.
	MIGUUID func(parentUUID string, gpuInstance, computeInstance int) string
	// Log is told of changes of state; nil: nobody is.
	Log *slog.Logger
}
