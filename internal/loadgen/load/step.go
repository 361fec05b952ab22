// SPDX-License-Identifier: Apache-2.0

package load

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// GPU is the GPU or MIG instance that is loaded.
type GPU struct {
	Index int    `json:"index"` // in the order of the PCI addresses, as nvidia-smi's
	UUID  string `json:"uuid"`  // of the MIG instance (MIG-…) if MIG is set
	PCI   string `json:"pci"`   // 00000000:18:00.0
	MIG   bool   `json:"mig,omitempty"`
	Name  string `json:"name"`

	ComputeCapability string `json:"computeCapability"` // 9.0
	SMs               int    `json:"sms"`
	MemoryBytes       uint64 `json:"memoryBytes"`
}

// Step is what was generated on a GPU in one report interval. A nil pointer is a value that could not be read.
type Step struct {
	Sequence int         `json:"sequence"` // index of the selection in the request
	Load     string      `json:"load"`     // Kind.Name
	Field    gpu.FieldID `json:"field"`
	GPU      GPU         `json:"gpu"`
	Start    time.Time   `json:"start"` // host time
	End      time.Time   `json:"end"`

	// Duty is the mean of the shape over the step, Busy the share of the time in which the device worked, as its stamps
	// say: of a ratio's pipe, the time in which it was fed.
	Duty float64 `json:"duty"`
	Busy float64 `json:"busy"`

	// Generated is what the field should show, in the unit of its row in the Field table, and Error its half-width. It is
	// absent where the device's peak is not known.
	Generated *float64 `json:"generated,omitempty"`
	Error     float64  `json:"error"`
	Unit      gpu.Unit `json:"unit"`

	// Rate is in RateUnit; Share is its share of the device's peak. Both are absent for kinds without a rate, Share also
	// where the peak is not known.
	Rate     *float64 `json:"rate,omitempty"`
	RateUnit string   `json:"rateUnit,omitempty"`
	Share    *float64 `json:"shareOfPeak,omitempty"`

	// ClockMHz is the mean SM clock, counted on the device. The rest is of NVML: the last reading of the step.
	ClockMHz *float64 `json:"clockMHz,omitempty"`
	Watts    *float64 `json:"watts,omitempty"`
	Celsius  *float64 `json:"celsius,omitempty"`
	Throttle []string `json:"throttle,omitempty"` // why the clock is held down; empty: it is not, or it is not known

	Variant string `json:"variant,omitempty"` // which kernel ran, such as mma.sync.m16n8k16
}
