// SPDX-License-Identifier: Apache-2.0

package load

import (
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/cuda"
)

// model is what the arithmetic needs to know of a device.
type model struct {
	capability                           int // 90 is 9.0
	sms, warpsPerSM, sharedPerSM, shared int
	l2                                   uint64
	memoryBytesPerSecond                 float64 // 0: not known
}

func modelOf(d *cuda.Device) (model, error) {
	capability, err := d.Capability()
	m := model{
		capability:  capability,
		sms:         max(1, d.Attribute(cuda.SMs)),
		warpsPerSM:  max(4, d.Attribute(cuda.MaxThreadsPerSM)/32),
		sharedPerSM: d.Attribute(cuda.SharedBytesPerSM),
		shared:      d.Attribute(cuda.SharedBytesPerBlock),
		l2:          uint64(max(0, d.Attribute(cuda.L2Bytes))),
	}
	m.setMemoryClock(float64(d.Attribute(cuda.MemoryClockKHz))*1e3, d.Attribute(cuda.MemoryBusBits))
	return m, err
}

// setMemoryClock sets the memory's peak: two transfers a cycle over the whole bus.
func (m *model) setMemoryClock(hertz float64, busBits int) {
	m.memoryBytesPerSecond = 2 * hertz * float64(busBits) / 8
}

// fmaPerCycle returns the multiply-adds that an SM's pipe completes in a cycle: at its peak, as NVIDIA's architecture
// papers have them, and with our instructions while its field shows 1. 0 is not known.
func (m *model) fmaPerCycle(field gpu.FieldID) (peak, busy float64) {
	row, _ := rates(m.capability)
	switch field {
	case gpu.FP64Active:
		peak = row.fp64
	case gpu.FP32Active:
		peak = row.fp32
	case gpu.FP16Active:
		peak = row.fp16
	case gpu.TensorActive:
		return row.tensor, row.mmaSync
	}
	return peak, peak
}

// pipeRates are multiply-adds of an SM and cycle; tensor is dense FP16. mmaSync is what mma.sync keeps the tensor cores
// busy for: on an H200, the field shows 1.500 times the share of the peak. Blackwell was not measured.
type pipeRates struct{ fp64, fp32, fp16, tensor, mmaSync float64 }

// rates returns the rates of a compute capability.
func rates(capability int) (pipeRates, bool) {
	switch capability {
	case 70, 72:
		return pipeRates{32, 64, 128, 512, 512}, true
	case 75:
		return pipeRates{2, 64, 128, 512, 512}, true
	case 80:
		return pipeRates{32, 64, 256, 1024, 1024}, true
	case 86, 87, 89:
		return pipeRates{2, 128, 128, 512, 512}, true
	case 90:
		return pipeRates{64, 128, 256, 2048, 2048 / 1.5}, true
	case 100:
		return pipeRates{64, 128, 256, 4096, 0}, true
	case 103:
		return pipeRates{2, 128, 256, 4096, 0}, true
	case 120, 121:
		return pipeRates{2, 128, 128, 512, 512}, true
	}
	return pipeRates{}, false
}

// pcieBytesPerSecond is the line rate of a PCIe link after its encoding; 0 if the generation is not known.
func pcieBytesPerSecond(generation, width int) float64 {
	transfers := []float64{2.5e9 * 8 / 10, 5e9 * 8 / 10, 8e9 * 128 / 130, 16e9 * 128 / 130, 32e9 * 128 / 130, 64e9 * 242 / 256}
	if generation < 1 || generation > len(transfers) {
		return 0
	}
	return transfers[generation-1] * float64(width) / 8
}

// headers is how many bytes cross PCIe for a byte of data: packets have headers, which the fields count.
func (m *model) headers() float64 {
	if m.capability >= 90 {
		return 1.08
	}
	return 1.123
}

// headersError is the relative half-width of headers: packets differ in size.
const headersError = 0.04
