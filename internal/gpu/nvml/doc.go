// SPDX-License-Identifier: Apache-2.0

// Package nvml reads GPUs through NVML, which it loads at run time. Nothing of
// NVML is needed to build or to start: a missing library and a driver that is
// not loaded are errors of Devices, which tries again at each call.
//
// NVML gives utilisation, memory, power, clocks, temperatures, errors, links
// and events on every GPU, and from Hopper on also what DCGM calls profiling
// metrics, through GPM.
package nvml

import "log/slog"

// Config says how to reach NVML.
type Config struct {
	// Library is the path of the library, or a name that the loader searches;
	// empty: libnvidia-ml.so.1.
	Library string
	// Log is told of changes of state; nil: nobody is.
	Log *slog.Logger
}
