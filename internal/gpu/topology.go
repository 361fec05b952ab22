// SPDX-License-Identifier: Apache-2.0

package gpu

// Topology is how the node's whole GPUs lie to one another and to its CPUs.
type Topology struct {
	GPUs  []GPUPlace
	Pairs []GPUPair
}

// GPUPlace is what one GPU is near to.
type GPUPlace struct {
	UUID      string
	CPUs      string // those that are near it, as 0-55,112-167; empty: not known
	NUMANodes string // whose memory is near it, likewise
	NVLinks   int    // active ones; -1: not known
}

// GPUPair is what two GPUs have between them.
type GPUPair struct {
	A, B    string    // UUIDs
	Path    PathLevel // over PCIe
	NVLinks int       // from one to the other, through switches or not; -1: not known
}

// PathLevel is what a PCIe path between two GPUs goes over.
type PathLevel string

// The levels, under nvidia-smi's names, nearest first.
const (
	UnknownPath  PathLevel = ""
	SameBoard    PathLevel = "INT"
	OneSwitch    PathLevel = "PIX"
	SomeSwitches PathLevel = "PXB"
	HostBridge   PathLevel = "PHB"
	SameNUMANode PathLevel = "NODE"
	AcrossNUMA   PathLevel = "SYS"
)

// TopologyReader is a Reader that knows the topology as well.
type TopologyReader interface {
	// Topology reads it. It may block as Reader's methods do, and takes long
	// beside a Read: ask rarely. Beside an error there may be a part of it.
	Topology() (Topology, error)
}
