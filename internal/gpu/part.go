// SPDX-License-Identifier: Apache-2.0

package gpu

// PartKind is a kind of parts.
type PartKind uint8

// The kinds of parts.
const (
	NVSwitch PartKind = iota
	NVLink
	CPU
	CPUCore
)

// PartKinds is how many kinds there are.
const PartKinds = 4

// String is the kind's name, as DCGM and its exporter write it.
func (k PartKind) String() string {
	return [...]string{"nvswitch", "nvlink", "cpu", "cpucore"}[k]
}

// Part is a piece of the node that is no GPU and has values of its own: an
// NvSwitch, a NVLink of a switch or of a GPU, a CPU of NVIDIA's, or one of its
// cores. Nobody owns it.
type Part struct {
	Kind   PartKind
	ID     int     // DCGM's id; of a link its index at its switch or GPU, from 0
	Parent int     // the link's switch, the core's CPU
	GPU    *Device // whose link it is; nil for one of a switch
	Serial string  // of a CPU, if it is known
}

// PartSnapshot is one part at one tick.
type PartSnapshot struct {
	Part
	Values Values
}

// PartReader is a Reader that reads parts as well.
type PartReader interface {
	// ReadParts reads the wanted fields of all parts of which keep approves,
	// each with what it has of them. It may block as Reader's methods do. A
	// node without such parts has none: that is no error.
	ReadParts(want FieldSet, keep func(*Part) bool) ([]PartSnapshot, error)
}

// On says whether parts of a kind are asked for the field, as dcgm-exporter
// asks: a switch for what its links have as well (it then sums them up), and a
// CPU for what its cores have. A field of GPUs is on none.
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
