// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// defaultFields are dcgm-exporter's collectors without a collectors file.
var defaultFields = [...]gpu.FieldID{
	gpu.SMClock, gpu.MemClock,
	gpu.MemoryTemp, gpu.GPUTemp,
	gpu.PowerUsage, gpu.TotalEnergy,
	gpu.PCIeReplayCounter,
	gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil,
	gpu.XIDErrors,
	gpu.FBFree, gpu.FBUsed, gpu.FBReserved,
	gpu.NVLinkBandwidth,
	gpu.VGPULicenseStatus,
	gpu.UncorrRemappedRows, gpu.CorrRemappedRows, gpu.RowRemapFailure,
	gpu.DriverVersion,
	gpu.GREngineActive, gpu.TensorActive, gpu.DRAMActive,
	gpu.PCIeTxBytes, gpu.PCIeRxBytes,
}

// default1x are the collectors of the 1.x-compatibility file.
var default1x = [...]gpu.FieldID{
	gpu.SMClock, gpu.MemClock,
	gpu.MemoryTemp, gpu.GPUTemp,
	gpu.PowerUsage, gpu.TotalEnergy,
	gpu.PCIeTxBytes, gpu.PCIeRxBytes, gpu.PCIeReplayCounter,
	gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil,
	gpu.XIDErrors,
	gpu.FBFree, gpu.FBUsed,
	gpu.NVLinkBandwidth,
	gpu.GREngineActive, gpu.TensorActive, gpu.DRAMActive,
}

// DefaultCollectors returns the collectors of a profile, for use without a
// collectors file.
func DefaultCollectors(p names.Profile) Collectors {
	ids := defaultFields[:]
	switch p {
	case names.Profile1x:
		ids = default1x[:]
	case names.Profile49:
		ids = append([]gpu.FieldID{gpu.FBTotal}, ids...)
	}
	var c Collectors
	for _, id := range ids {
		f, ok := gpu.Lookup(id)
		if !ok {
			continue
		}
		name, scale := p.Name(f)
		ref := gpu.Ref{Field: id, Scale: scale}
		if f.Kind == gpu.Label {
			c.Labels = append(c.Labels, LabelCollector{Name: name, Ref: ref})
			continue
		}
		c.Metrics = append(c.Metrics, Collector{Name: name, Ref: ref, Type: typeOf(p, f), Help: p.Help(f)})
	}
	return c
}

// typeOf returns a field's type in the profile's own collectors file, which can
// differ from the field's kind.
func typeOf(p names.Profile, f *gpu.Field) Type {
	switch {
	case p == names.Profile1x && (f.ID == gpu.PCIeTxBytes || f.ID == gpu.PCIeRxBytes):
		return Counter
	case f.ID == gpu.NVLinkBandwidth && (p == names.Profile48 || p == names.Profile49): // since 4.8.3
		return Gauge
	case f.Kind == gpu.Counter:
		return Counter
	}
	return Gauge
}
