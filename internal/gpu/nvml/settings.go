// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Fields that other packages do not need by name.
const (
	gpuCount         gpu.FieldID = 4
	nvmlIndex        gpu.FieldID = 52
	computeMode      gpu.FieldID = 65
	persistenceMode  gpu.FieldID = 66
	migMode          gpu.FieldID = 67
	migMaxSlices     gpu.FieldID = 69
	bar1Total        gpu.FieldID = 90
	bar1Used         gpu.FieldID = 92
	bar1Free         gpu.FieldID = 93
	appSMClock       gpu.FieldID = 110
	appMemClock      gpu.FieldID = 111
	maxVideoClock    gpu.FieldID = 115
	memMaxTemp       gpu.FieldID = 151
	gpuMaxTemp       gpu.FieldID = 152
	powerLimitMin    gpu.FieldID = 161
	powerLimitMax    gpu.FieldID = 162
	powerLimitByDef  gpu.FieldID = 163
	pcieTx           gpu.FieldID = 200
	pcieRx           gpu.FieldID = 201
	eccMode          gpu.FieldID = 300
	eccModeAtRestart gpu.FieldID = 301
)

// identities are the fields outside of the gpu package's table that say which GPU this is.
const (
	deviceName        gpu.FieldID = 50
	deviceUUID        gpu.FieldID = 54
	devicePCI         gpu.FieldID = 57
	devicePCIID       gpu.FieldID = 58
	devicePCISubsys   gpu.FieldID = 59
	deviceComputeCaps gpu.FieldID = 63
)

// isIdentity reports whether the field says which GPU this is.
func isIdentity(id gpu.FieldID) bool {
	return slices.Contains([]gpu.FieldID{deviceName, deviceUUID, devicePCI, devicePCIID, devicePCISubsys, deviceComputeCaps}, id)
}

// readIdentity sets the wanted identities. An instance has its GPU's, as with DCGM.
func (d *device) readIdentity() {
	ids := d.ses.pass.Load()
	if ids == nil {
		return
	}
	whole := d
	if d.whole != nil {
		whole = d.whole
	}
	for _, id := range *ids {
		switch id {
		case deviceName:
			d.out.v.SetLabel(id, whole.Model)
		case deviceUUID:
			d.out.v.SetLabel(id, whole.UUID)
		case devicePCI:
			d.out.v.SetLabel(id, whole.PCIBusID)
		case devicePCIID, devicePCISubsys, deviceComputeCaps:
			d.readIdentityNumber(id)
		}
	}
}

// readIdentityNumber sets an identity that is a number. It does not judge the GPU.
func (d *device) readIdentityNumber(id gpu.FieldID) {
	if id == deviceComputeCaps {
		if !d.ses.has("nvmlDeviceGetCudaComputeCapability") {
			return
		}
		if major, minor, ret := d.root.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			d.out.v.Take(id, gpu.Whole(int64(major)<<16|int64(minor))) // dcgm_fields.h, DCGM_CUDA_COMPUTE_CAPABILITY_MAJOR
		}
		return
	}
	if !d.ses.hasAny("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo") {
		return
	}
	if pci, ret := d.root.GetPciInfo(); ret == nvml.SUCCESS {
		n := pci.PciDeviceId
		if id == devicePCISubsys {
			n = pci.PciSubSystemId
		}
		d.out.v.Take(id, gpu.Whole(int64(n)))
	}
}

// settings adds the probes of the GPU's settings, limits and numbers. Each needs a call of
// its own, and is made only if a collectors file selects its field.
func (t *table) settings() {
	t.probes = append(t.probes,
		probe{fields: gpu.SetOf(gpuCount), read: func(d *device) nvml.Return {
			d.out.set(gpuCount, float64(d.ses.count.Load()))
			return nvml.SUCCESS
		}},
		probe{fields: gpu.SetOf(nvmlIndex), read: func(d *device) nvml.Return {
			d.out.set(nvmlIndex, float64(d.Index))
			return nvml.SUCCESS
		}})
	t.add("nvmlDeviceGetMaxMigDeviceCount", plainProbe(migMaxSlices, 1, nvml.Device.GetMaxMigDeviceCount))
	t.add("nvmlDeviceGetApplicationsClock", clockProbe(appSMClock, nvml.CLOCK_SM, nvml.Device.GetApplicationsClock))
	t.add("nvmlDeviceGetApplicationsClock", clockProbe(appMemClock, nvml.CLOCK_MEM, nvml.Device.GetApplicationsClock))
	t.add("nvmlDeviceGetMaxClockInfo", clockProbe(maxVideoClock, nvml.CLOCK_VIDEO, nvml.Device.GetMaxClockInfo))
	t.add("nvmlDeviceGetTemperatureThreshold", thresholdProbe(memMaxTemp, nvml.TEMPERATURE_THRESHOLD_MEM_MAX))
	t.add("nvmlDeviceGetTemperatureThreshold", thresholdProbe(gpuMaxTemp, nvml.TEMPERATURE_THRESHOLD_GPU_MAX))
	t.add("nvmlDeviceGetPcieThroughput", throughputProbe(pcieTx, nvml.PCIE_UTIL_TX_BYTES))
	t.add("nvmlDeviceGetPcieThroughput", throughputProbe(pcieRx, nvml.PCIE_UTIL_RX_BYTES))
	t.add("nvmlDeviceGetComputeMode", plainProbe(computeMode, 1, nvml.Device.GetComputeMode))
	t.add("nvmlDeviceGetPersistenceMode", plainProbe(persistenceMode, 1, nvml.Device.GetPersistenceMode))
	t.add("nvmlDeviceGetMigMode", probe{fields: gpu.SetOf(migMode), read: readMIGMode})
	t.add("nvmlDeviceGetBAR1MemoryInfo", probe{fields: gpu.SetOf(bar1Total, bar1Used, bar1Free), read: readBAR1})
	t.add("nvmlDeviceGetPowerManagementLimitConstraints", probe{fields: gpu.SetOf(powerLimitMin, powerLimitMax), read: readPowerLimits})
	t.add("nvmlDeviceGetPowerManagementDefaultLimit", plainProbe(powerLimitByDef, 1e-3, nvml.Device.GetPowerManagementDefaultLimit))
	t.add("nvmlDeviceGetEccMode", probe{fields: gpu.SetOf(eccMode, eccModeAtRestart), read: readECCMode})
}

func readMIGMode(d *device) nvml.Return {
	current, _, ret := d.handle.GetMigMode()
	if ret == nvml.SUCCESS {
		d.out.set(migMode, float64(current))
	}
	return ret
}

func readBAR1(d *device) nvml.Return {
	m, ret := d.handle.GetBAR1MemoryInfo()
	if ret == nvml.SUCCESS {
		d.out.set(bar1Total, mebibytes(m.Bar1Total))
		d.out.set(bar1Used, mebibytes(m.Bar1Used))
		d.out.set(bar1Free, mebibytes(m.Bar1Free))
	}
	return ret
}

func readPowerLimits(d *device) nvml.Return {
	least, most, ret := d.handle.GetPowerManagementLimitConstraints()
	if ret == nvml.SUCCESS {
		d.out.set(powerLimitMin, float64(least)*1e-3)
		d.out.set(powerLimitMax, float64(most)*1e-3)
	}
	return ret
}

func readECCMode(d *device) nvml.Return {
	current, pending, ret := d.handle.GetEccMode()
	if ret == nvml.SUCCESS {
		d.out.set(eccMode, float64(current))
		d.out.set(eccModeAtRestart, float64(pending))
	}
	return ret
}

// throughputProbe reads the PCIe throughput in KB/s, over 20 ms, for which the call waits.
func throughputProbe(id gpu.FieldID, counter nvml.PcieUtilCounter) probe {
	return probe{fields: gpu.SetOf(id), read: func(d *device) nvml.Return {
		kb, ret := d.handle.GetPcieThroughput(counter)
		if ret == nvml.SUCCESS {
			d.out.set(id, float64(kb))
		}
		return ret
	}}
}
