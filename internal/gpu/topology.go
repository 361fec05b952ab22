// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strconv"
	"strings"
)

// Topology is the paths between the node's whole GPUs, and from them to its
// CPUs.
type Topology struct {
	GPUs  []GPUPlace
	Pairs []GPUPair
}

// GPUPlace is the CPUs and NUMA nodes near one GPU.
type GPUPlace struct {
	UUID      string
	CPUs      string // the near CPUs, such as 0-55,112-167; empty: unknown
	NUMANodes string // the NUMA nodes with near memory, in the same form
	NVLinks   int    // active ones; -1: unknown
}

// GPUPair is the connection of two GPUs.
type GPUPair struct {
	A, B    string    // UUIDs
	Path    PathLevel // over PCIe
	NVLinks int       // from one to the other, also through switches; -1: unknown
}

// PathLevel is the longest hop of a PCIe path between two GPUs.
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

// TopologyReader is a Reader that also reads the topology.
type TopologyReader interface {
	// Topology reads the topology. It may block as Reader's methods do, and
	// takes longer than a Read: call it rarely. It can return an incomplete
	// topology with an error.
	Topology() (Topology, error)
}

// Ranges formats a bit mask of words of 64 bits as 0-3,8.
func Ranges(set []uint) string {
	has := func(i int) bool { return i < 64*len(set) && set[i/64]&(1<<(i%64)) != 0 }
	var out []string
	for i := 0; i < 64*len(set); i++ {
		if !has(i) {
			continue
		}
		first := i
		for has(i + 1) {
			i++
		}
		if first == i {
			out = append(out, strconv.Itoa(i))
		} else {
			out = append(out, fmt.Sprintf("%d-%d", first, i))
		}
	}
	return strings.Join(out, ",")
}
