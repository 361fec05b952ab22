// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// defaultFields are what dcgm-exporter reads by default.
func defaultFields() gpu.FieldSet {
	return gpu.SetOf(gpu.SMClock, gpu.MemClock, gpu.MemoryTemp, gpu.GPUTemp, gpu.PowerUsage, gpu.TotalEnergy, gpu.PCIeReplayCounter,
		gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil, gpu.XIDErrors, gpu.FBFree, gpu.FBUsed, gpu.FBReserved, gpu.UncorrRemappedRows,
		gpu.CorrRemappedRows, gpu.RowRemapFailure, gpu.NVLinkBandwidth, gpu.VGPULicenseStatus, gpu.DriverVersion)
}

// BenchmarkRead reads one GPU of the fake, whose calls cost little.
func BenchmarkRead(b *testing.B) {
	for _, c := range []struct {
		name string
		want gpu.FieldSet
	}{
		{"util", gpu.SetOf(gpu.GPUUtil)},
		{"default", defaultFields()},
		{"profiling", gpu.SetOf(gpu.SMActive, gpu.SMOccupancy, gpu.TensorActive, gpu.DRAMActive)},
		{"all", gpu.AllFields()},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := newFake(b)
			r, devices := reader(b, f)
			var v gpu.Values
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Read(devices[0].UUID, c.want, &v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
