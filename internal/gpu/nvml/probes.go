// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// probe is one way to read one or a few fields from NVML.
type probe struct {
	fields gpu.FieldSet
	// basic: every GPU supports this call, so that it shows whether the GPU
	// works.
	basic bool
	mig   bool // works for a MIG instance
	read  func(d *device) nvml.Return
}

// probes returns the probes that this library supports, in the order in which
// they are tried. If two give the same field, the second is for GPUs and
// drivers that refuse the first. A missing symbol must never be called: that
// would end the process.
func probes(has func(symbol string) bool) []probe {
	t := table{has: has}
	t.basic()
	t.plain()
	t.add("nvmlDeviceGetFieldValues", probe{fields: batchFields(), read: readBatch})
	t.fallbacks()
	t.settings()
	for _, version := range []string{"", "_v2", "_v3", "_v4"} {
		if has("nvmlDeviceGetGridLicensableFeatures" + version) {
			t.probes = append(t.probes, probe{fields: gpu.SetOf(gpu.VGPULicenseStatus), read: licence})
			break
		}
	}
	return append(t.probes, probe{fields: gpmFields(), mig: true, read: readGPM})
}

// table collects the probes whose symbol exists in the library.
type table struct {
	has    func(symbol string) bool
	probes []probe
}

func (t *table) add(symbol string, p probe) {
	if t.has(symbol) {
		t.probes = append(t.probes, p)
	}
}

// basic adds the probes that show whether the GPU works.
func (t *table) basic() {
	v1 := gpu.SetOf(gpu.FBTotal, gpu.FBFree, gpu.FBUsed, gpu.FBUsedPercent)
	v2 := v1.Union(gpu.SetOf(gpu.FBReserved))
	power := plainProbe(gpu.PowerUsage, 1e-3, nvml.Device.GetPowerUsage)
	power.basic = true
	t.add("nvmlDeviceGetTemperature", probe{fields: gpu.SetOf(gpu.GPUTemp), basic: true, read: temperature})
	t.add("nvmlDeviceGetPowerUsage", power)
	t.add("nvmlDeviceGetMemoryInfo_v2", probe{fields: v2, basic: true, mig: true, read: memoryV2})
	t.add("nvmlDeviceGetMemoryInfo", probe{fields: v1, basic: true, mig: true, read: memoryV1})
	t.add("nvmlDeviceGetUtilizationRates", probe{fields: gpu.SetOf(gpu.GPUUtil, gpu.MemCopyUtil), basic: true, read: utilization})
}

// plain adds the probes of one field each, and the remapped rows.
func (t *table) plain() {
	t.add("nvmlDeviceGetClockInfo", clockProbe(gpu.SMClock, nvml.CLOCK_SM, nvml.Device.GetClockInfo))
	t.add("nvmlDeviceGetClockInfo", clockProbe(gpu.MemClock, nvml.CLOCK_MEM, nvml.Device.GetClockInfo))
	t.add("nvmlDeviceGetClockInfo", clockProbe(gpu.VideoClock, nvml.CLOCK_VIDEO, nvml.Device.GetClockInfo))
	t.add("nvmlDeviceGetMaxClockInfo", clockProbe(gpu.MaxSMClock, nvml.CLOCK_SM, nvml.Device.GetMaxClockInfo))
	t.add("nvmlDeviceGetMaxClockInfo", clockProbe(gpu.MaxMemClock, nvml.CLOCK_MEM, nvml.Device.GetMaxClockInfo))
	t.add("nvmlDeviceGetCurrentClocksEventReasons", plainProbe(gpu.ClocksEventReasons, 1, nvml.Device.GetCurrentClocksEventReasons))
	t.add("nvmlDeviceGetCurrentClocksThrottleReasons", plainProbe(gpu.ClocksEventReasons, 1, nvml.Device.GetCurrentClocksThrottleReasons))
	t.add("nvmlDeviceGetTotalEnergyConsumption", plainProbe(gpu.TotalEnergy, 1, nvml.Device.GetTotalEnergyConsumption))
	t.add("nvmlDeviceGetTemperatureThreshold", thresholdProbe(gpu.SlowdownTemp, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN))
	t.add("nvmlDeviceGetTemperatureThreshold", thresholdProbe(gpu.ShutdownTemp, nvml.TEMPERATURE_THRESHOLD_SHUTDOWN))
	t.add("nvmlDeviceGetPowerManagementLimit", plainProbe(gpu.PowerMgmtLimit, 1e-3, nvml.Device.GetPowerManagementLimit))
	t.add("nvmlDeviceGetEnforcedPowerLimit", plainProbe(gpu.EnforcedPowerLimit, 1e-3, nvml.Device.GetEnforcedPowerLimit))
	t.add("nvmlDeviceGetPerformanceState", probe{fields: gpu.SetOf(gpu.PState), read: performanceState})
	t.add("nvmlDeviceGetFanSpeed", plainProbe(gpu.FanSpeed, 1, nvml.Device.GetFanSpeed))
	t.add("nvmlDeviceGetPcieReplayCounter", plainProbe(gpu.PCIeReplayCounter, 1, nvml.Device.GetPcieReplayCounter))
	t.add("nvmlDeviceGetEncoderUtilization", coderProbe(gpu.EncUtil, nvml.Device.GetEncoderUtilization))
	t.add("nvmlDeviceGetDecoderUtilization", coderProbe(gpu.DecUtil, nvml.Device.GetDecoderUtilization))
	t.add("nvmlDeviceGetMaxPcieLinkGeneration", plainProbe(gpu.PCIeMaxLinkGen, 1, nvml.Device.GetMaxPcieLinkGeneration))
	t.add("nvmlDeviceGetMaxPcieLinkWidth", plainProbe(gpu.PCIeMaxLinkWidth, 1, nvml.Device.GetMaxPcieLinkWidth))
	t.add("nvmlDeviceGetCurrPcieLinkGeneration", plainProbe(gpu.PCIeLinkGen, 1, nvml.Device.GetCurrPcieLinkGeneration))
	t.add("nvmlDeviceGetCurrPcieLinkWidth", plainProbe(gpu.PCIeLinkWidth, 1, nvml.Device.GetCurrPcieLinkWidth))
	rows := gpu.SetOf(gpu.CorrRemappedRows, gpu.UncorrRemappedRows, gpu.RowRemapPending, gpu.RowRemapFailure)
	t.add("nvmlDeviceGetRemappedRows", probe{fields: rows, read: remappedRows})
}

// fallbacks adds the probes for drivers that do not give these fields as field
// values.
func (t *table) fallbacks() {
	for _, p := range eccCounters() {
		t.add("nvmlDeviceGetTotalEccErrors", p)
	}
	for _, p := range violations() {
		t.add("nvmlDeviceGetViolationStatus", p)
	}
	t.add("nvmlDeviceGetRetiredPages", retiredProbe(gpu.RetiredSBE, nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS))
	t.add("nvmlDeviceGetRetiredPages", retiredProbe(gpu.RetiredDBE, nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR))
	t.add("nvmlDeviceGetRetiredPagesPendingStatus", plainProbe(gpu.RetiredPending, 1, nvml.Device.GetRetiredPagesPendingStatus))
}

// plainProbe reads one number, times scale.
func plainProbe[T ~int | ~int32 | ~uint32 | ~uint64](id gpu.FieldID, scale float64, get func(nvml.Device) (T, nvml.Return)) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		x, ret := get(d.handle)
		if ret == nvml.SUCCESS {
			d.out.setNumber(id, wholeOf(x), scale)
		}
		return ret
	}}
}

// wholeOf converts a number of NVML. A number of more than 63 bits is not
// exact.
func wholeOf[T ~int | ~int32 | ~uint32 | ~uint64](x T) gpu.Number {
	if x > 0 && uint64(x) > math.MaxInt64 {
		return gpu.Real(float64(x))
	}
	return gpu.Whole(int64(x))
}

func clockProbe(id gpu.FieldID, clock nvml.ClockType, get func(nvml.Device, nvml.ClockType) (uint32, nvml.Return)) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		mhz, ret := get(d.handle, clock)
		if ret == nvml.SUCCESS {
			d.out.set(id, float64(mhz))
		}
		return ret
	}}
}

func thresholdProbe(id gpu.FieldID, threshold nvml.TemperatureThresholds) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		c, ret := d.handle.GetTemperatureThreshold(threshold)
		if ret == nvml.SUCCESS {
			d.out.set(id, float64(c))
		}
		return ret
	}}
}

func coderProbe(id gpu.FieldID, get func(nvml.Device) (uint32, uint32, nvml.Return)) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		percent, _, ret := get(d.handle)
		if ret == nvml.SUCCESS {
			d.out.set(id, float64(percent))
		}
		return ret
	}}
}

func retiredProbe(id gpu.FieldID, cause nvml.PageRetirementCause) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		pages, ret := d.handle.GetRetiredPages(cause)
		if ret == nvml.SUCCESS {
			d.out.set(id, float64(len(pages)))
		}
		return ret
	}}
}

func eccCounters() []probe {
	counter := func(id gpu.FieldID, kind nvml.MemoryErrorType, life nvml.EccCounterType) probe {
		return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
			n, ret := d.handle.GetTotalEccErrors(kind, life)
			if ret == nvml.SUCCESS {
				d.out.setNumber(id, wholeOf(n), 1)
			}
			return ret
		}}
	}
	return []probe{
		counter(gpu.ECCSBEVolatile, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC),
		counter(gpu.ECCDBEVolatile, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC),
		counter(gpu.ECCSBEAggregate, nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC),
		counter(gpu.ECCDBEAggregate, nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC),
	}
}

func violations() []probe {
	violation := func(id gpu.FieldID, policy nvml.PerfPolicyType) probe {
		return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
			v, ret := d.handle.GetViolationStatus(policy)
			if ret == nvml.SUCCESS {
				d.out.setNumber(id, wholeOf(v.ViolationTime), 1) // ns, nvml.h
			}
			return ret
		}}
	}
	return []probe{
		violation(gpu.PowerViolation, nvml.PERF_POLICY_POWER),
		violation(gpu.ThermalViolation, nvml.PERF_POLICY_THERMAL),
		violation(gpu.SyncBoostViolation, nvml.PERF_POLICY_SYNC_BOOST),
		violation(gpu.BoardLimitViolation, nvml.PERF_POLICY_BOARD_LIMIT),
		violation(gpu.LowUtilViolation, nvml.PERF_POLICY_LOW_UTILIZATION),
		violation(gpu.ReliabilityViolation, nvml.PERF_POLICY_RELIABILITY),
	}
}

func temperature(d *device) nvml.Return {
	c, ret := d.handle.GetTemperature(nvml.TEMPERATURE_GPU)
	if ret == nvml.SUCCESS {
		d.out.set(gpu.GPUTemp, float64(c))
	}
	return ret
}

func utilization(d *device) nvml.Return {
	u, ret := d.handle.GetUtilizationRates()
	if ret == nvml.SUCCESS {
		d.out.set(gpu.GPUUtil, float64(u.Gpu))
		d.out.set(gpu.MemCopyUtil, float64(u.Memory))
	}
	return ret
}

// mebibytes rounds down to whole MiB, as DCGM does.
func mebibytes(bytes uint64) float64 { return float64(bytes >> 20) }

func memoryV2(d *device) nvml.Return {
	m, ret := d.handle.GetMemoryInfo_v2()
	if ret != nvml.SUCCESS {
		return ret
	}
	d.out.set(gpu.FBTotal, mebibytes(m.Total))
	d.out.set(gpu.FBFree, mebibytes(m.Free))
	d.out.set(gpu.FBUsed, mebibytes(m.Used))
	d.out.set(gpu.FBReserved, mebibytes(m.Reserved))
	if m.Total > m.Reserved {
		d.out.set(gpu.FBUsedPercent, float64(m.Used)/float64(m.Total-m.Reserved))
	}
	return ret
}

// memoryV1 is for drivers before 510, which count reserved memory as used and
// do not give its size.
func memoryV1(d *device) nvml.Return {
	m, ret := d.handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return ret
	}
	d.out.set(gpu.FBTotal, mebibytes(m.Total))
	d.out.set(gpu.FBFree, mebibytes(m.Free))
	d.out.set(gpu.FBUsed, mebibytes(m.Used))
	if m.Total > 0 {
		d.out.set(gpu.FBUsedPercent, float64(m.Used)/float64(m.Total))
	}
	return ret
}

func performanceState(d *device) nvml.Return {
	p, ret := d.handle.GetPerformanceState()
	if ret == nvml.SUCCESS && p != nvml.PSTATE_UNKNOWN {
		d.out.set(gpu.PState, float64(p))
	}
	return ret
}

func remappedRows(d *device) nvml.Return {
	corrected, uncorrected, pending, failed, ret := d.handle.GetRemappedRows()
	if ret != nvml.SUCCESS {
		return ret
	}
	d.out.set(gpu.CorrRemappedRows, float64(corrected))
	d.out.set(gpu.UncorrRemappedRows, float64(uncorrected))
	d.out.set(gpu.RowRemapPending, flag(pending))
	d.out.set(gpu.RowRemapFailure, flag(failed))
	return ret
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// licence is 0 on bare metal, which needs no license.
func licence(d *device) nvml.Return {
	f, ret := d.handle.GetGridLicensableFeatures()
	if ret != nvml.SUCCESS {
		return ret
	}
	held := false
	if f.IsGridLicenseSupported != 0 {
		for _, x := range f.GridLicensableFeatures[:min(int(f.LicensableFeaturesCount), len(f.GridLicensableFeatures))] {
			held = held || x.FeatureCode == uint32(nvml.GRID_LICENSE_FEATURE_CODE_VGPU) && x.FeatureState > 0
		}
	}
	d.out.set(gpu.VGPULicenseStatus, flag(held))
	return ret
}
