// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVML, which it loads at run time. NVML is not
// needed to build or to start the program: a missing library or driver is an
// error of Devices, which tries again at each call.
//
// NVML gives utilisation, memory, power, clocks, temperatures, errors, links
// and events on every GPU, and, from Hopper on, DCGM's profiling metrics
// through GPM.
package nvml

import (
	"log/slog"
	"time"
)

// Config is the configuration of a Reader.
type Config struct {
	// Library is the path of the library, or a name that the loader searches;
	// empty: libnvidia-ml.so.1.
	Library string
	// Log receives changes of state; nil: no log.
	Log *slog.Logger

	eventWait time.Duration // of tests, which close many readers; 0: eventWait
}
