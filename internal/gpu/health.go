// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"strings"
	"time"
)

// Health is the facts that decide whether a GPU is fit for work.
type Health struct {
	UUID            string
	Down            bool // the GPU cannot be read
	Unlisted        bool // the agent lists its MIG instances, not the GPU
	RowRemapFailure bool
	XIDs            []XIDCount // Count may be 0, if unknown
}

// NodeHealth is the health of a node's GPUs.
type NodeHealth struct {
	BackendDown bool // the backend cannot enumerate GPUs
	Released    bool // the agent reads no GPU, because it was asked to
	GPUs        []Health
	Counts      *GPUCounts // nil: unknown
}

// Fault is a reason to give a GPU no more work. Reason is one word in
// CamelCase.
type Fault struct{ Reason, Message string }

// The reasons of faults. They are public: do not rename them.
const (
	FaultLost     = "GPULost"
	FaultMissing  = "GPUMissing"
	FaultRowRemap = "RowRemapFailure"
	FaultXID      = "XIDError"
)

// The messages of FaultLost; the first one follows a UUID.
const (
	unreadable   = " cannot be read any more"
	noneReadable = "no GPU of the node can be read"
)

// faultFor is how long an XID error counts as a fault. A reset of the GPU
// cannot be detected; only a restart of the agent clears the error.
const faultFor = 24 * time.Hour

// Faults returns the faults of the GPU, the most severe first; none if it is
// fit for work.
func (h *Health) Faults(now time.Time) (out []Fault) {
	if h.Down {
		out = append(out, Fault{FaultLost, h.UUID + unreadable})
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

// Faults returns the faults of all GPUs of the node.
func (n *NodeHealth) Faults(now time.Time) (out []Fault) {
	if n.BackendDown {
		return []Fault{{FaultLost, noneReadable}}
	}
	for i := range n.GPUs {
		out = append(out, n.GPUs[i].Faults(now)...)
	}
	if n.missing() > 0 {
		out = append(out, Fault{FaultMissing, n.Counts.sentence()})
	}
	return out
}

// missing returns how many GPUs the node should have that are not listed, without those
// that are reported as down: they may not be listed either.
func (n *NodeHealth) missing() int {
	missing := n.Counts.Missing()
	for i := range n.GPUs {
		if n.GPUs[i].Down && IsWhole(n.GPUs[i].UUID) {
			missing--
		}
	}
	return missing
}

// sentence says what the sources say.
func (c *GPUCounts) sentence() string {
	text := fmt.Sprintf("the GPU library lists %d GPUs", c.Listed)
	if c.Bound > c.Listed {
		text += fmt.Sprintf(", the PCI bus has %d with NVIDIA's driver", c.Bound)
	}
	if c.Allocatable > c.Listed {
		text += fmt.Sprintf(", the device plugin offers %d", c.Allocatable)
	}
	return text
}

// IsLost reports whether faults of a node, as the messages of its condition, say that this GPU is lost,
// or the GPU of this MIG instance (GPU-…/gi1).
func IsLost(faults, uuid string) bool {
	uuid, _, _ = strings.Cut(uuid, "/")
	for f := range strings.SplitSeq(faults, "; ") {
		f = strings.TrimPrefix(f, FaultLost+": ")
		if f == noneReadable || f == uuid+unreadable {
			return true
		}
	}
	return false
}

// IsWhole reports whether a UUID is a GPU's and not a MIG device's.
func IsWhole(uuid string) bool { return strings.HasPrefix(uuid, "GPU-") }
