// SPDX-License-Identifier: Apache-2.0

package gpu

// Links is what is known of a whole GPU's NVLinks, beside its fields.
type Links struct {
	Errors []LinkError // by link and type
	Down   []int       // links that were active while the agent ran, and are not now
	Peers  []Peer      // the node's other GPUs, by index
}

// LinkError is how many errors of one type a link had, since the driver was
// loaded or the link was last reset.
type LinkError struct {
	Link  int // from 0
	Type  string
	Count uint64
}

// Peer says how a GPU reaches another one over NVLink.
type Peer struct {
	Index  int // the other's
	Status P2PStatus
}

// P2PStatus is nvmlGpuP2PStatus_t, and DCGM's the same.
type P2PStatus int

// The statuses; 1 to 5 are why it does not reach it.
const (
	P2POK      P2PStatus = 0
	P2PUnknown P2PStatus = 6
)

// LinkReader is a Reader that reads NVLinks as well.
type LinkReader interface {
	// Links reads those of the whole GPU with this UUID. It may block as
	// Reader's methods do, and takes a hundred calls of the library: ask rarely,
	// and not while the GPU is read or asked.
	Links(uuid string) (Links, error)
}
