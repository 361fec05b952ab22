// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// healthXIDs is how long an XID error counts against a GPU's health.
const healthXIDs = time.Hour

// healthOK is the error code of a healthy system.
const healthOK = "DCGM_FR_OK"

// unjudged are the systems that only DCGM can judge. Without DCGM's verdicts
// they are absent, not healthy.
func unjudged(w gpu.HealthWatch) bool { return w == gpu.WatchSM || w == gpu.WatchInforom }

// judge returns the verdict on each system of a GPU from its values and XID
// errors.
func judge(d *gpu.DeviceSnapshot, now time.Time) (out gpu.Verdicts) {
	positive := func(id gpu.FieldID) bool { v, ok := d.Values.Get(id); return ok && v > 0 }
	if positive(gpu.RowRemapFailure) {
		out[gpu.WatchMem].Worsen(gpu.HealthFail, "DCGM_FR_ROW_REMAP_FAILURE")
	}
	if positive(gpu.ECCDBEVolatile) {
		out[gpu.WatchMem].Worsen(gpu.HealthFail, "DCGM_FR_VOLATILE_DBE_DETECTED")
	}
	if positive(gpu.RowRemapPending) {
		out[gpu.WatchMem].Worsen(gpu.HealthWarn, "DCGM_FR_PENDING_ROW_REMAP")
	}
	if positive(gpu.RetiredPending) {
		out[gpu.WatchMem].Worsen(gpu.HealthWarn, "DCGM_FR_PENDING_PAGE_RETIREMENTS")
	}
	if reasons, ok := d.Values.Get(gpu.ClocksEventReasons); ok {
		mask := uint64(max(reasons, 0))
		if mask&0x60 != 0 { // sw_thermal, hw_thermal
			out[gpu.WatchThermal].Worsen(gpu.HealthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
		}
		if mask&0x80 != 0 { // hw_power_brake
			out[gpu.WatchPower].Worsen(gpu.HealthWarn, "DCGM_FR_CLOCK_THROTTLE_POWER")
		}
	}
	temp, ok := d.Values.Get(gpu.GPUTemp)
	if limit, ok2 := d.Values.Get(gpu.SlowdownTemp); ok && ok2 && limit > 0 && temp >= limit {
		out[gpu.WatchThermal].Worsen(gpu.HealthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
	}
	if len(d.Links.Down) > 0 {
		out[gpu.WatchNVLink].Worsen(gpu.HealthFail, "DCGM_FR_NVLINK_DOWN")
	}
	if d.Err != nil {
		out[gpu.WatchDriver].Worsen(gpu.HealthFail, "DCGM_FR_NVML_API")
	}
	for _, x := range d.XIDs {
		if now.Sub(x.Last) > healthXIDs {
			continue
		}
		if known, ok := gpu.LookupXID(x.Code); ok {
			out[gpu.WatchAll].Worsen(known.GPU.Health, known.GPU.Code)
			out[known.Watch].Worsen(known.System.Health, known.System.Code)
		}
	}
	return out
}

// appendHealth writes a GPU's systems, with the library's verdicts if it gives
// any, else with ours. MIG instances have no health of their own.
func (m *metric) appendHealth(b []byte, in *renderInput, e *entity) []byte {
	if e.dev.MIG != nil {
		return b
	}
	of := e.dev.Verdicts
	if of == nil {
		ours := judge(e.dev, in.now)
		of = &ours
	}
	for w := range gpu.HealthWatch(gpu.HealthWatches) {
		if e.dev.Verdicts == nil && unjudged(w) {
			continue
		}
		b = append(m.head(b, in, e), `,health_error_code="`...)
		b = appendEscaped(b, cmp.Or(of[w].Code, healthOK), true)
		b = append(b, `",health_watch="`...)
		b = append(append(b, w.String()...), '"')
		b = m.tail(b, in, e, uint64(of[w].Health))
	}
	return b
}

// xidText is the err_msg of an XID code.
func xidText(code uint64) string {
	if x, ok := gpu.LookupXID(code); ok {
		return x.Text
	}
	return "Unknown Error"
}
