// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Fields that other packages do not need by name.
const (
	computeMode      gpu.FieldID = 65
	persistenceMode  gpu.FieldID = 66
	migMode          gpu.FieldID = 67
	bar1Total        gpu.FieldID = 90
	bar1Used         gpu.FieldID = 92
	bar1Free         gpu.FieldID = 93
	powerLimitMin    gpu.FieldID = 161
	powerLimitMax    gpu.FieldID = 162
	powerLimitByDef  gpu.FieldID = 163
	eccMode          gpu.FieldID = 300
	eccModeAtRestart gpu.FieldID = 301
)

// settings adds the probes of the GPU's settings. Each needs a call of its own,
// and is made only if a collectors file selects its field.
func (t *table) settings() {
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
