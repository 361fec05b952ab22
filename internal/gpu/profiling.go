// SPDX-License-Identifier: Apache-2.0

package gpu

// Profiler is a Reader that knows why a device gives no profiling fields.
type Profiler interface {
	// NoProfiling is why the device gives none of the ProfilingFields; empty
	// where it gives some, or where that is not known yet. It never blocks.
	NoProfiling(uuid string) string
}

// ProfilingFields are those that DCGM's profiling module and NVML's GPM give.
func ProfilingFields() FieldSet {
	var s FieldSet
	for i, f := range Fields() {
		if f.ID >= GREngineActive && f.ID <= IntActive {
			s.Add(Index(i))
		}
	}
	return s
}
