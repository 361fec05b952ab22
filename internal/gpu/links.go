// SPDX-License-Identifier: Apache-2.0

package gpu

// Links is the state of a whole GPU's NVLinks, besides its fields.
type Links struct {
	Active int         // how many links are active
	Errors []LinkError // by link and type
	Down   []int       // links that were active since the agent started, and are now inactive
	Peers  []Peer      // the node's other GPUs, by index
}

// LinkError is the number of errors of one type on a link, since the driver was
// loaded or the link was last reset.
type LinkError struct {
	Link  int // from 0
	Type  string
	Count uint64
}

// Peer is the NVLink connection of a GPU to another one.
type Peer struct {
	Index  int // of the other GPU
	Status P2PStatus
}

// P2PStatus is nvmlGpuP2PStatus_t; DCGM has the same values.
type P2PStatus int

// The statuses. 1 to 5 are reasons for which there is no connection.
const (
	P2POK      P2PStatus = 0
	P2PUnknown P2PStatus = 6
)

// LinkReader is a Reader that also reads NVLinks.
type LinkReader interface {
	// Links reads the NVLinks of the whole GPU with this UUID. It may block as
	// Reader's methods do, and makes about a hundred calls of the library: call
	// it rarely, and not during another call for the GPU.
	Links(uuid string) (Links, error)
}
