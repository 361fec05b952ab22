// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strings"
	"time"
)

// Health is what tells whether a GPU is fit for work.
type Health struct {
	UUID            string
	Down            bool // it cannot be read, or not any more
	RowRemapFailure bool
	XIDs            []XIDCount // Count may be unknown
}

// NodeHealth is the health of a node's GPUs.
type NodeHealth struct {
	Blind bool // the library does not enumerate GPUs
	GPUs  []Health
}

// Fault is why a GPU should get no more work. Reason is one word.
type Fault struct{ Reason, Message string }

// The reasons of faults. They are public.
const (
	FaultLost     = "GPULost"
	FaultRowRemap = "RowRemapFailure"
	FaultXID      = "XIDError"
)

// faultFor is how long an XID error counts against a GPU: nothing says that it
// was reset since, except that its agent, and with it the count, began anew.
const faultFor = 24 * time.Hour

// Faults are why the GPU should get no more work, the gravest first; none if it
// is fit.
func (h *Health) Faults(now time.Time) (out []Fault) {
	if h.Down {
		out = append(out, Fault{FaultLost, h.UUID + " cannot be read any more"})
	}
	if h.RowRemapFailure {
		out = append(out, Fault{FaultRowRemap, h.UUID + ": a row of its memory could not be remapped"})
	}
	for _, x := range h.XIDs {
		known, ok := LookupXID(x.Code)
		if age := now.Sub(x.Last); !ok || known.Fatal == "" || age > faultFor {
			continue
		}
		out = append(out, Fault{FaultXID, fmt.Sprintf("%s: XID %d at %s, %s", h.UUID, x.Code, x.Last.UTC().Format(time.RFC3339), known.Fatal)})
	}
	return out
}

// Faults are those of all GPUs of the node.
func (n *NodeHealth) Faults(now time.Time) (out []Fault) {
	if n.Blind {
		return []Fault{{FaultLost, "no GPU of the node can be read"}}
	}
	for i := range n.GPUs {
		out = append(out, n.GPUs[i].Faults(now)...)
	}
	return out
}

// IsWhole says whether a UUID is a GPU's and not a MIG device's.
func IsWhole(uuid string) bool { return strings.HasPrefix(uuid, "GPU-") }
