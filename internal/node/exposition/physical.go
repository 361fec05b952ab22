// SPDX-License-Identifier: Apache-2.0

package exposition

import "github.com/gpupilot/gpupilot/internal/gpu"

// throttles are the reasons that held a GPU's clocks down, with the fields of
// their durations. Alerts read the first two; the others are shown with Config.Further.
var throttles = [...]struct {
	field  gpu.FieldID
	reason string
}{
	{gpu.PowerViolation, "power"},
	{gpu.ThermalViolation, "thermal"},
	{gpu.SyncBoostViolation, "sync_boost"},
	{gpu.BoardLimitViolation, "board_limit"},
	{gpu.LowUtilViolation, "low_utilization"},
	{gpu.ReliabilityViolation, "reliability"},
}

// shownThrottles is how many of the throttles are shown.
func (c *Config) shownThrottles() int {
	if c.Further {
		return len(throttles)
	}
	return 2
}

// physicalFields are the fields that physicalFamilies need.
func physicalFields(cfg *Config) (s gpu.FieldSet) {
	if cfg.Further {
		s = gpu.SetOf(gpu.TotalEnergy)
	}
	for _, t := range throttles[:cfg.shownThrottles()] {
		s = s.Union(gpu.SetOf(t.field))
	}
	return s
}

// physicalFamilies are counters of whole GPUs in base units. They do not depend
// on the collectors file.
func physicalFamilies(cfg *Config) []family {
	return []family{
		further("gpupilot_gpu_energy_joules_total", Counter, "Energy used by the GPU since the driver was loaded.",
			func(b []byte, in *renderInput) []byte {
				return eachGPU(b, in, readings, func(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte {
					millijoules, ok := d.Values.Number(gpu.TotalEnergy)
					if !ok || millijoules.Float < 0 {
						return b
					}
					b = appendLabel(append(b, "gpupilot_gpu_energy_joules_total{"...), "uuid", uuid)
					return append(appendPer(append(b, "} "...), millijoules, 1e3), '\n')
				})
			}),
		meta("gpupilot_gpu_throttle_seconds_total", Counter, "Time for which the GPU's clocks were held down since the driver was loaded, by reason.",
			func(b []byte, in *renderInput) []byte {
				return eachGPU(b, in, readings, func(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte {
					return appendThrottles(b, uuid, d, cfg.shownThrottles())
				})
			}),
		meta("gpupilot_nvlink_errors_total", Counter, "Errors of an NVLink of the GPU, by link (from 0) and type. Read every ten seconds; counters at 0 are omitted.",
			func(b []byte, in *renderInput) []byte { return eachGPU(b, in, knowledge, appendLinkErrors) }),
		meta("gpupilot_gpu_nvlink_errors_total", Counter, "Errors of all NVLinks of the GPU, of all types: 0 before the first one. Read every ten seconds.",
			func(b []byte, in *renderInput) []byte { return eachGPU(b, in, knowledge, appendLinkErrorSum) }),
		meta("gpupilot_nvlinks_down", Gauge, "NVLinks of the GPU that were active since the agent started and are now inactive.",
			func(b []byte, in *renderInput) []byte {
				return eachGPU(b, in, knowledge, func(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte {
					if d.Links.Active == 0 && len(d.Links.Errors) == 0 && len(d.Links.Down) == 0 {
						return b
					}
					b = appendLabel(append(b, "gpupilot_nvlinks_down{"...), "uuid", uuid)
					return append(appendUint(append(b, "} "...), uint64(len(d.Links.Down))), '\n')
				})
			}),
	}
}

// What is shown of a GPU: how it is, which ends when it cannot be read, or what has
// happened to it, which stays.
const (
	readings = iota
	knowledge
)

// eachGPU calls f once for each GPU that is read, or was for knowledge. If only
// its MIG instances are read, f gets one of them.
func eachGPU(b []byte, in *renderInput, what int, f func(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte) []byte {
	maxAge := gpu.MaxAge(in.snap.Interval)
	last := ""
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		uuid := d.UUID
		if d.MIG != nil {
			uuid = d.MIG.ParentUUID
		}
		if uuid != last && (what == knowledge || d.Fresh(in.now, maxAge)) {
			b = f(b, uuid, d)
			last = uuid // a GPU comes before its instances, and these together
		}
	}
	return b
}

func appendThrottles(b []byte, uuid string, d *gpu.DeviceSnapshot, n int) []byte {
	for _, t := range throttles[:n] {
		nanoseconds, ok := d.Values.Number(t.field)
		if !ok || nanoseconds.Float < 0 {
			continue
		}
		b = appendLabel(append(b, "gpupilot_gpu_throttle_seconds_total{"...), "uuid", uuid)
		b = appendLabel(append(b, ','), "reason", t.reason)
		b = append(appendPer(append(b, "} "...), nanoseconds, 1e9), '\n')
	}
	return b
}

// appendLinkErrors omits counters that are 0: a GPU with 18 links has 72 of
// them, and usually all are 0.
func appendLinkErrors(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte {
	for _, e := range d.Links.Errors {
		if e.Count == 0 {
			continue
		}
		b = appendLabel(append(b, "gpupilot_nvlink_errors_total{"...), "uuid", uuid)
		b = appendNumber(b, `,link="`, e.Link)
		b = appendLabel(append(b, ','), "type", e.Type)
		b = append(appendUint(append(b, "} "...), e.Count), '\n')
	}
	return b
}

// appendLinkErrorSum writes the sum, which is there before the first error.
func appendLinkErrorSum(b []byte, uuid string, d *gpu.DeviceSnapshot) []byte {
	if len(d.Links.Errors) == 0 {
		return b
	}
	var n uint64
	for _, e := range d.Links.Errors {
		n += e.Count
	}
	b = appendLabel(append(b, "gpupilot_gpu_nvlink_errors_total{"...), "uuid", uuid)
	return append(appendUint(append(b, "} "...), n), '\n')
}
