// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// holdings are the pods that hold devices of a target. Each of them is in the index of pods.
type holdings struct {
	target *Target // in the index
	pods   table[podKey, *holding]
	round  uint32 // updates of owners
	steps  int    // the work of updates of owners, for tests
	bytes  int64  // of the pods' names and tenures
}

// tenure is a device that a pod holds since a time in ns.
type tenure struct {
	target *Target
	device *device
	from   int64
}

// holding is a pod's tenures on one target.
type holding struct {
	spans []span
	round uint32 // the last update in which the pod lost a device
}

// span is a tenure without its target.
type span struct {
	device *device
	from   int64
}

const (
	spanSize     = int64(unsafe.Sizeof(span{}))
	holdingBytes = int64(unsafe.Sizeof(holding{})+unsafe.Sizeof(podEntry{})+unsafe.Sizeof(holder{})) + 2*(32+8) // with the index
	holdingEntry = 2 * (32 + 8)
)

func (h *holding) bytes() int64 { return int64(cap(h.spans)) * spanSize }

// size returns the bytes of the holdings and of their part of the index.
func (x *holdings) size() int64 {
	return x.bytes + int64(len(x.pods.entries))*holdingBytes + int64(x.pods.peak)*holdingEntry
}

// costOf returns the most that the next owners of devices can cost.
func (x *holdings) costOf(changed []*device) ledger.Cost {
	n := int64(0)
	for _, d := range changed {
		n += ownerBytes(d.next) - min(ownerBytes(d.owners), ownerBytes(d.next))
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			x.steps++
			switch {
			case before || !after:
			case x.pods.entries[podKey{namespace, pod}] == nil:
				n += holdingBytes + holdingEntry + TextBytes(len(pod)) + 2*spanSize
			default:
				n += 3 * spanSize
			}
		})
		n += ownerSize * int64(len(d.next)) // append doubles a list of up to 256 entries
	}
	return ledger.Plain(n + 1024)
}

// end ends the tenures of pods that are not among the next owners of their device. It
// reads the tenures of each such pod once, also if the pod lost several devices.
func (x *holdings) end(changed []*device) {
	for _, d := range changed {
		d.changed = x.round
	}
	for _, d := range changed {
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			x.steps++
			k := podKey{namespace, pod}
			if h := x.pods.entries[k]; before && !after && h != nil && h.round != x.round {
				h.round = x.round
				x.endOf(h, k)
			}
		})
	}
	x.pods.fit()
}

func (x *holdings) endOf(h *holding, k podKey) {
	x.bytes -= h.bytes()
	h.spans = slices.DeleteFunc(h.spans, func(n span) bool {
		x.steps++
		if n.device.changed != x.round {
			return false
		}
		_, still := slices.BinarySearchFunc(n.device.next, k, func(o gpu.Owner, k podKey) int {
			return cmp.Or(cmp.Compare(o.Namespace, k.namespace), cmp.Compare(o.Pod, k.pod))
		})
		return !still
	})
	if len(h.spans) == 0 {
		delete(x.pods.entries, k)
		x.bytes -= TextBytes(len(k.pod))
		x.target.store.index.remove(k, x.target, false)
		return
	}
	if cap(h.spans) > 4*len(h.spans)+8 {
		h.spans = slices.Clone(h.spans)
	}
	x.bytes += h.bytes()
}

// begin begins the tenures of the next owners that do not own their device yet.
func (x *holdings) begin(changed []*device, stamp int64) {
	for _, d := range changed {
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			x.steps++
			if before || !after {
				return
			}
			h := x.add(podKey{namespace, pod})
			x.bytes -= h.bytes()
			h.spans = append(h.spans, span{d, stamp})
			x.bytes += h.bytes()
		})
	}
}

// add returns a pod's holding, and adds it if it is new.
func (x *holdings) add(k podKey) *holding {
	h := x.pods.entries[k]
	if h == nil {
		h = &holding{}
		x.pods.put(k, h)
		x.bytes += TextBytes(len(k.pod))
		x.target.store.index.add(k, x.target, h)
	}
	return h
}

// rewind lets the tenures begin no later than stamp, to which the clock was set back.
func (x *holdings) rewind(stamp int64) {
	for _, h := range x.pods.entries {
		for i := range h.spans {
			h.spans[i].from = min(h.spans[i].from, stamp)
		}
	}
}

// close removes the holdings.
func (x *holdings) close() {
	for k := range x.pods.entries {
		x.target.store.index.remove(k, x.target, false)
	}
	*x = holdings{}
}
