// SPDX-License-Identifier: Apache-2.0

package gpu

import "time"

// PartKind is the kind of a part.
type PartKind uint8

// The kinds of parts.
const (
	NVSwitch PartKind = iota
	NVLink
	CPU
	CPUCore
)

// PartKinds is the number of kinds.
const PartKinds = 4

// String returns the kind's name, as DCGM and dcgm-exporter write it.
func (k PartKind) String() string {
	return [...]string{"nvswitch", "nvlink", "cpu", "cpucore"}[k]
}

// Part is a component of the node other than a GPU: an NvSwitch, an NVLink of a
// switch or of a GPU, an NVIDIA CPU, or one of its cores. A part has no owner.
type Part struct {
	Kind   PartKind
	ID     int     // DCGM's id; for a link the index at its switch or GPU, from 0
	Parent int     // the link's switch, the core's CPU
	GPU    *Device // the link's GPU; nil for a switch's link
	Serial string  // of a CPU, if known
}

// PartSnapshot is one part at one tick.
type PartSnapshot struct {
	Part
	Values    Values
	Collected time.Time // the start of the last successful read; set by the agent
}

// PartReader is a Reader that also reads parts.
type PartReader interface {
	// ReadParts reads the wanted fields of all parts for which keep returns
	// true. It may block as Reader's methods do. An empty list is not an error.
	ReadParts(want FieldSet, keep func(*Part) bool) ([]PartSnapshot, error)
}

// On reports whether parts of a kind are asked for the field, as in
// dcgm-exporter. A switch is also asked for its links' fields, which it sums,
// and a CPU for its cores' fields. It is false for fields of GPUs.
func (f *Field) On(k PartKind) bool {
	link := f.ID >= SwitchLinkTx && f.ID <= SwitchLinkECC || f.ID == SwitchLinkID || f.ID == SwitchLinkStatus || f.ID == SwitchLinkType
	core := f.ID >= CPUUtil && f.ID <= CPUUtilIRQ || f.ID == CPUClock
	switch k {
	case NVSwitch:
		return f.ID >= SwitchVoltage && f.ID <= SwitchLinkType
	case NVLink:
		return link
	case CPU:
		return f.ID >= CPUUtil && f.ID <= CPUModel
	}
	return core
}
