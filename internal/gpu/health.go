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

// fatalXIDs are the errors after which NVIDIA's catalog of XIDs asks for a reset
// of the GPU, a restart of the node, or its support; those that an application
// brings upon itself (13, 31, 43, 45, 94, …) are not among them.
var fatalXIDs = [...]struct {
	from, to uint64
	what     string
}{
	{46, 46, "it stopped processing"},
	{48, 48, "an uncorrectable ECC error"},
	{62, 62, "its micro-controller halted"},
	{64, 64, "a row could not be remapped"},
	{74, 74, "an NVLink error"},
	{79, 79, "it fell off the bus"},
	{95, 95, "an uncontained memory error"},
	{109, 109, "a context switch timed out"},
	{110, 110, "a security fault"},
	{119, 120, "its system processor (GSP) failed"},
	{123, 123, "its power controller does not answer"},
	{136, 136, "an NVLink could not be trained"},
	{140, 140, "an ECC error was not recovered from"},
	{143, 143, "it could not be initialised"},
	{144, 150, "an NVLink error"},
}

// FatalXID says what an XID error is after which the GPU must be reset or looked
// after before it works again; ok is false for others.
func FatalXID(code uint64) (what string, ok bool) {
	for _, x := range fatalXIDs {
		if x.from <= code && code <= x.to {
			return x.what, true
		}
	}
	return "", false
}

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
		what, fatal := FatalXID(x.Code)
		if age := now.Sub(x.Last); !fatal || age > faultFor {
			continue
		}
		out = append(out, Fault{FaultXID, fmt.Sprintf("%s: XID %d at %s, %s", h.UUID, x.Code, x.Last.UTC().Format(time.RFC3339), what)})
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
