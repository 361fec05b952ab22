// SPDX-License-Identifier: Apache-2.0

package gpu

// Profiler is a Reader that can explain why a device gives no profiling fields.
type Profiler interface {
	// NoProfiling returns why the device gives none of the ProfilingFields;
	// empty if it gives some, or if that is not known yet. It never blocks.
	NoProfiling(uuid string) string
}

// ProfilingFields returns the fields that DCGM's profiling module and NVML's
// GPM give.
func ProfilingFields() FieldSet {
	var s FieldSet
	for i, f := range Fields() {
		if f.ID >= GREngineActive && f.ID <= IntActive {
			s.Add(Index(i))
		}
	}
	return s
}
