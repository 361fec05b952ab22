// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"errors"
	"slices"
	"time"
)

// healthXIDs is how long an XID error counts against a GPU's health.
const healthXIDs = time.Hour

// Unjudged reports whether only DCGM can judge a system. Without DCGM's verdicts
// they are absent, not healthy.
func Unjudged(w HealthWatch) bool { return w == WatchSM || w == WatchInforom }

// CanJudge reports whether the values of the device say something about a system. Without
// them a verdict of ours is no verdict.
func (d *DeviceSnapshot) CanJudge(w HealthWatch) bool {
	has := func(ids ...FieldID) bool {
		return slices.ContainsFunc(ids, func(id FieldID) bool { _, ok := d.Values.Get(id); return ok })
	}
	switch w {
	case WatchMem:
		return has(RowRemapFailure, ECCDBEVolatile, RowRemapPending, RetiredPending)
	case WatchThermal:
		return has(ClocksEventReasons) || has(GPUTemp) && has(SlowdownTemp)
	case WatchPower:
		return has(ClocksEventReasons)
	default:
		return !Unjudged(w)
	}
}

// Health returns the verdicts on a GPU's systems: the library's where it gives any, else
// ours. judged reports whether they are the library's. If the GPU cannot be read, or its
// values are older than maxAge, the last verdicts stay, and ours are added: the loss and
// the errors since.
func (d *DeviceSnapshot) Health(now time.Time, maxAge time.Duration) (out Verdicts, judged bool) {
	if d.Verdicts == nil {
		return judge(d, now, maxAge), false
	}
	out = *d.Verdicts
	if d.Err == nil && d.Fresh(now, maxAge) {
		return out, true
	}
	for w, v := range judge(d, now, maxAge) {
		out[w].Worsen(v.Health, v.Code)
	}
	return out, true
}

// judge returns the verdict on each system of a GPU from its values and XID errors. A
// GPU that is lost, or whose values are older than maxAge after a failure, is unusable.
func judge(d *DeviceSnapshot, now time.Time, maxAge time.Duration) (out Verdicts) {
	positive := func(id FieldID) bool { v, ok := d.Values.Get(id); return ok && v > 0 }
	if positive(RowRemapFailure) {
		out[WatchMem].Worsen(HealthFail, "DCGM_FR_ROW_REMAP_FAILURE")
	}
	if positive(ECCDBEVolatile) {
		out[WatchMem].Worsen(HealthFail, "DCGM_FR_VOLATILE_DBE_DETECTED")
	}
	if positive(RowRemapPending) {
		out[WatchMem].Worsen(HealthWarn, "DCGM_FR_PENDING_ROW_REMAP")
	}
	if positive(RetiredPending) {
		out[WatchMem].Worsen(HealthWarn, "DCGM_FR_PENDING_PAGE_RETIREMENTS")
	}
	if reasons, ok := d.Values.Get(ClocksEventReasons); ok {
		mask := uint64(max(reasons, 0))
		if mask&0x60 != 0 { // sw_thermal, hw_thermal
			out[WatchThermal].Worsen(HealthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
		}
		if mask&0x80 != 0 { // hw_power_brake
			out[WatchPower].Worsen(HealthWarn, "DCGM_FR_CLOCK_THROTTLE_POWER")
		}
	}
	temp, ok := d.Values.Get(GPUTemp)
	if limit, ok2 := d.Values.Get(SlowdownTemp); ok && ok2 && limit > 0 && temp >= limit {
		out[WatchThermal].Worsen(HealthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
	}
	if len(d.Links.Down) > 0 {
		out[WatchNVLink].Worsen(HealthFail, "DCGM_FR_NVLINK_DOWN")
	}
	for _, x := range d.XIDs {
		if now.Sub(x.Last) > healthXIDs {
			continue
		}
		if known, ok := LookupXID(x.Code); ok {
			out[WatchAll].Worsen(known.GPU.Health, known.GPU.Code)
			out[known.Watch].Worsen(known.System.Health, known.System.Code)
		}
	}
	if d.Err != nil {
		out[WatchDriver].Worsen(HealthFail, "DCGM_FR_NVML_API")
		if errors.Is(d.Err, ErrLost) || !d.Fresh(now, maxAge) {
			out[WatchAll].Worsen(HealthFail, "DCGM_FR_FIELD_QUERY") // an XID's code goes first
		}
	}
	return out
}
