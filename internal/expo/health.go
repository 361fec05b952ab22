// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The values of DCGM_EXP_GPU_HEALTH_STATUS, dcgmHealthWatchResults_t.
const (
	healthPass = 0
	healthWarn = 10
	healthFail = 20
)

// healthXIDs is how long an XID error counts against a GPU's health.
const healthXIDs = time.Hour

// healthWatches are the systems that can be judged without DCGM. SM and INFOROM
// cannot, and are absent rather than well.
var healthWatches = [...]string{"PCIE", "NVLINK", "PMU", "MCU", "MEM", "THERMAL", "POWER", "DRIVER"}

const (
	watchPCIe = iota
	watchNVLink
	watchPMU
	watchMCU
	watchMem
	watchThermal
	watchPower
	watchDriver
)

// verdict is the worst that is known of one system.
type verdict struct {
	health int
	code   string // DCGM's name of the error
}

func (v *verdict) worse(health int, code string) {
	if health > v.health {
		v.health, v.code = health, code
	}
}

// xidHealth says what XID errors mean for a system; an application's own
// errors (13, 31, 43, 45, …) mean nothing.
var xidHealth = [...]struct {
	from, to uint64
	watch    int
	health   int
	code     string
}{
	{48, 48, watchMem, healthFail, "DCGM_FR_VOLATILE_DBE_DETECTED"},
	{62, 62, watchMCU, healthFail, "DCGM_FR_XID_ERROR"},
	{61, 61, watchMCU, healthWarn, "DCGM_FR_XID_ERROR"},
	{63, 63, watchMem, healthWarn, "DCGM_FR_PENDING_ROW_REMAP"},
	{64, 64, watchMem, healthFail, "DCGM_FR_ROW_REMAP_FAILURE"},
	{74, 74, watchNVLink, healthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"},
	{79, 79, watchPCIe, healthFail, "DCGM_FR_XID_ERROR"},
	{94, 94, watchMem, healthWarn, "DCGM_FR_XID_ERROR"},
	{95, 95, watchMem, healthFail, "DCGM_FR_UNCONTAINED_ERROR"},
	{119, 120, watchDriver, healthFail, "DCGM_FR_XID_ERROR"},
	{122, 123, watchPMU, healthWarn, "DCGM_FR_XID_ERROR"},
	{136, 136, watchNVLink, healthFail, "DCGM_FR_XID_ERROR"},
	{140, 140, watchMem, healthFail, "DCGM_FR_XID_ERROR"},
	{143, 143, watchDriver, healthFail, "DCGM_FR_XID_ERROR"},
	{144, 150, watchNVLink, healthFail, "DCGM_FR_NVLINK_ERROR_CRITICAL"},
}

// judge gives the verdict on each system of a GPU.
func judge(d *gpu.DeviceSnapshot, now time.Time) [len(healthWatches)]verdict {
	var out [len(healthWatches)]verdict
	for i := range out {
		out[i].code = "DCGM_FR_OK"
	}
	positive := func(id gpu.FieldID) bool { v, ok := d.Values.Get(id); return ok && v > 0 }
	if positive(gpu.RowRemapFailure) {
		out[watchMem].worse(healthFail, "DCGM_FR_ROW_REMAP_FAILURE")
	}
	if positive(gpu.ECCDBEVolatile) {
		out[watchMem].worse(healthFail, "DCGM_FR_VOLATILE_DBE_DETECTED")
	}
	if positive(gpu.RowRemapPending) {
		out[watchMem].worse(healthWarn, "DCGM_FR_PENDING_ROW_REMAP")
	}
	if positive(gpu.RetiredPending) {
		out[watchMem].worse(healthWarn, "DCGM_FR_PENDING_PAGE_RETIREMENTS")
	}
	if reasons, ok := d.Values.Get(gpu.ClocksEventReasons); ok {
		mask := uint64(max(reasons, 0))
		if mask&0x60 != 0 { // sw_thermal, hw_thermal
			out[watchThermal].worse(healthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
		}
		if mask&0x80 != 0 { // hw_power_brake
			out[watchPower].worse(healthWarn, "DCGM_FR_CLOCK_THROTTLE_POWER")
		}
	}
	temp, ok := d.Values.Get(gpu.GPUTemp)
	if limit, ok2 := d.Values.Get(gpu.SlowdownTemp); ok && ok2 && limit > 0 && temp >= limit {
		out[watchThermal].worse(healthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
	}
	if len(d.Links.Down) > 0 {
		out[watchNVLink].worse(healthFail, "DCGM_FR_NVLINK_DOWN")
	}
	if d.Err != nil {
		out[watchDriver].worse(healthFail, "DCGM_FR_NVML_API")
	}
	for _, x := range d.XIDs {
		if now.Sub(x.Last) > healthXIDs {
			continue
		}
		for i := range xidHealth {
			if r := &xidHealth[i]; r.from <= x.Code && x.Code <= r.to {
				out[r.watch].worse(r.health, r.code)
			}
		}
	}
	return out
}

// appendHealth writes a GPU's systems. MIG instances have no health of their
// own.
func (m *metric) appendHealth(b []byte, in *renderInput, e *entity) []byte {
	if e.dev.MIG != nil {
		return b
	}
	for i, v := range judge(e.dev, in.now) {
		b = append(m.head(b, in, e), `,health_error_code="`...)
		b = append(append(b, v.code...), `",health_watch="`...)
		b = append(append(b, healthWatches[i]...), '"')
		b = m.tail(b, in, e, uint64(v.health))
	}
	return b
}
