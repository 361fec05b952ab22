// SPDX-License-Identifier: Apache-2.0

// Package top shows the fleet in a terminal: the live views of gpupilot top, and the lists
// of gpupilot get. It reads the JSON of the controller or of one agent.
package top

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Fleet is what was read of a controller or of an agent. A list is a part of what exists
// if its total is higher than its length.
type Fleet struct {
	Source string // for the head: the cluster's or the node's name
	Agent  bool   // one node, without a controller
	View   view.View
	Nodes  []view.NodeSummary
	GPUs   []GPU

	// Holders are the pods that hold the most idle GPUs, where not all GPUs were read.
	Holders *view.HolderPage

	TotalNodes, TotalGPUs, TotalWorkloads int
	Offset                                int // of the list that was read in part

	// Detail is the workload of the request; nil: not asked for, or not known.
	Detail *view.WorkloadDetail

	// Raw is the agent's own answer.
	Raw json.RawMessage
}

// GPU is a GPU or a MIG instance with what its agent says about it.
type GPU struct {
	view.GPUEntry
	Device *Device // only of an agent
}

// Name is a short name of the GPU: its node with its index, or with the start of its UUID.
func (g *GPU) Name() string {
	if d := g.Device; d != nil {
		return g.Node + ":" + d.name()
	}
	return deviceName(g.Node, g.UUID, g.Index)
}

// deviceName is the short name of a GPU. A MIG instance has the number of its GPU instance behind the index.
func deviceName(node, uuid string, index *int) string {
	if index == nil {
		return node + ":" + shortUUID(uuid)
	}
	if _, instance, ok := strings.Cut(uuid, "/gi"); ok {
		return fmt.Sprintf("%s:%d.%s", node, *index, instance)
	}
	if price.IsInstance(uuid) {
		return fmt.Sprintf("%s:%d.%s", node, *index, shortUUID(uuid))
	}
	return node + ":" + strconv.Itoa(*index)
}

// shortUUID returns the first digits of a UUID, which tell the GPUs of a node apart: 3fae1c
// of GPU-3fae1c2b-….
func shortUUID(uuid string) string {
	_, rest, ok := strings.Cut(uuid, "-")
	if !ok {
		return uuid
	}
	return rest[:min(len(rest), 6)]
}

// plural is a number with a noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped is a number with a comma before each three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && n > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// holders are the pods that hold a GPU, or its processes where pods are not known.
func (g *GPU) holders() string {
	var names []string
	for i := range g.Owners {
		if name := ownerName(&g.Owners[i]); name != "" {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// ownerName names an owner; empty: it is not known.
func ownerName(o *view.Owner) string {
	if o.Namespace == "" {
		return o.Pod
	}
	return o.Namespace + "/" + o.Pod
}

// in reports whether a pod of a namespace holds the GPU; an empty namespace is any.
func (g *GPU) in(namespace string) bool {
	if namespace == "" {
		return true
	}
	for _, o := range g.Owners {
		if o.Namespace == namespace {
			return true
		}
	}
	return false
}

// Only returns the workloads, decisions and GPUs of a namespace, and the nodes of these GPUs
// where all GPUs were read.
func (f *Fleet) Only(namespace string) *Fleet {
	if namespace == "" {
		return f
	}
	out := *f
	out.View.Workloads, out.View.Recent, out.GPUs = nil, nil, nil
	for _, w := range f.View.Workloads {
		if w.Namespace == namespace {
			out.View.Workloads = append(out.View.Workloads, w)
		}
	}
	for _, e := range f.View.Recent {
		if e.Namespace == namespace {
			out.View.Recent = append(out.View.Recent, e)
		}
	}
	for i := range f.GPUs {
		if f.GPUs[i].in(namespace) {
			out.GPUs = append(out.GPUs, f.GPUs[i])
		}
	}
	return &out
}

// Look is how values are shown.
type Look struct {
	ASCII     bool
	Prices    price.Table // instead of the controller's; none: those
	Namespace string      // empty: all
	Now       time.Time
	Trends    *Trends // nil: no curves
}

// usd is the price of a GPU's hour; nil: it has none.
func (l *Look) usd(g *GPU) *float64 {
	return view.PriceBy(&l.Prices, g.Pool, g.Model)(&g.GPU)
}

// costs are the USD an hour of the held, the idle-held and the free GPUs.
func (f *Fleet) costs(l *Look) (held, idle, free sum) {
	c := f.View.Fleet
	c.Cost = f.View.CostBy(&l.Prices)
	return costsOf(&c)
}

// costsOf are the costs of counted GPUs.
func costsOf(c *view.Counts) (held, idle, free sum) {
	if c.Cost != nil {
		held = sum{c.Cost.Held, c.Allocated - c.Cost.Unpriced, c.Cost.Unpriced}
		idle = sum{c.Cost.Idle, c.Idle - c.Cost.IdleUnpriced, c.Cost.IdleUnpriced}
		free = sum{c.Cost.Free, c.Free - c.Cost.FreeUnpriced, c.Cost.FreeUnpriced}
	}
	return held, idle, free
}
