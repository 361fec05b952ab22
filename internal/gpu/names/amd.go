// SPDX-License-Identifier: Apache-2.0

package names

import "github.com/gpupilot/gpupilot/internal/gpu"

// fromMicrojoules is the scale from µJ to the field table's mJ.
const fromMicrojoules = 1e-3

// amdName is a metric name of AMD's device-metrics-exporter.
type amdName struct {
	name  string
	field gpu.FieldID
	scale float64 // from the name's unit to the field's
}

// amd are the names of AMD's device-metrics-exporter, from its list of metrics
// (docs/configuration/metricslist.md of github.com/ROCm/device-metrics-exporter, 1.5),
// which has the units. On /metrics they are in lower case. Of two names for one field, a
// GPU has one: the package power and the junction temperature are those of the MI300
// series, the average package power and the edge temperature those of the MI200 series.
// gpu_power_usage is left out, because both series have it beside the other one. MB are
// MiB: the exporter divides the driver's bytes by 2^20.
var amd = [...]amdName{
	{"gpu_gfx_activity", gpu.GPUUtil, 1},     // %, of a GPU that is not partitioned
	{"gpu_umc_activity", gpu.MemCopyUtil, 1}, // %
	{"gpu_used_vram", gpu.FBUsed, 1},         // MB
	{"gpu_free_vram", gpu.FBFree, 1},         // MB
	{"gpu_total_vram", gpu.FBTotal, 1},       // MB
	{"gpu_package_power", gpu.PowerUsage, 1}, // W
	{"gpu_average_package_power", gpu.PowerUsage, 1},
	{"gpu_energy_consumed", gpu.TotalEnergy, fromMicrojoules},
	{"gpu_junction_temperature", gpu.GPUTemp, 1}, // °C
	{"gpu_edge_temperature", gpu.GPUTemp, 1},
	{"gpu_memory_temperature", gpu.MemoryTemp, 1},
}

// findAMD finds the field of a name of AMD's device-metrics-exporter.
func findAMD(name string) (gpu.Ref, bool) {
	for _, a := range amd {
		if a.name == name {
			return gpu.Ref{Field: a.field, Scale: a.scale}, true
		}
	}
	return gpu.Ref{}, false
}
