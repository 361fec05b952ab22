// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// holdings are the pods that hold devices of a target, or held them within the window.
// Each of them is in the index of pods.
type holdings struct {
	target  *Target // in the index
	pods    table[podKey, *holding]
	round   uint32 // updates of owners
	past    int    // ended tenures
	pruneAt int    // prune when past exceeds this
	steps   int    // the work of updates of owners, for tests
	bytes   int64  // of the pods' names and tenures
}

// tenure is the time in which a pod held a device, [from, until) in ns.
type tenure struct {
	target      *Target
	device      *device
	from, until int64 // until is open while the pod holds the device
}

const open = math.MaxInt64

// holding is a pod's tenures on one target.
type holding struct {
	spans []span
	round uint32 // the last update in which the pod lost a device
}

// span is a tenure without its target.
type span struct {
	device      *device
	from, until int64
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
func (x *holdings) end(changed []*device, stamp int64) {
	for _, d := range changed {
		d.changed = x.round
	}
	for _, d := range changed {
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			x.steps++
			k := podKey{namespace, pod}
			if h := x.pods.entries[k]; before && !after && h != nil && h.round != x.round {
				h.round = x.round
				x.endOf(h, k, stamp)
			}
		})
	}
}

func (x *holdings) endOf(h *holding, k podKey, stamp int64) {
	for i := range h.spans {
		x.steps++
		n := &h.spans[i]
		if n.until != open || n.device.changed != x.round {
			continue
		}
		compare := func(j int) int {
			o := &n.device.next[j]
			return cmp.Or(cmp.Compare(k.namespace, o.Namespace), cmp.Compare(k.pod, o.Pod))
		}
		if _, still := sort.Find(len(n.device.next), compare); !still {
			n.until = stamp
			x.past++
		}
	}
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
			h.spans = append(h.spans, span{d, stamp, open})
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

// prune removes the tenures that ended before a time, and the oldest of the others
// if there are more than maxPast. It returns how many of these. It sets pruneAt to twice
// the tenures that are left, so that the amortized cost of a tenure is constant.
func (x *holdings) prune(before int64) (early int) {
	x.forgetPast(before)
	if x.past > maxPast {
		ends := make([]int64, 0, x.past)
		for _, h := range x.pods.entries {
			for _, n := range h.spans {
				if n.until != open {
					ends = append(ends, n.until)
				}
			}
		}
		slices.Sort(ends)
		x.forgetPast(ends[len(ends)-maxPast/2] + 1)
		early = len(ends) - x.past
	}
	x.pruneAt = min(2*x.past+64, maxPast)
	x.pods.fit()
	return early
}

// forgetPast removes the tenures that ended before a time.
func (x *holdings) forgetPast(before int64) {
	for k, h := range x.pods.entries {
		x.steps += len(h.spans)
		x.filter(k, h, func(n *span) bool { return n.until >= before })
	}
}

// filter keeps the tenures of a pod for which keep returns true.
func (x *holdings) filter(k podKey, h *holding, keep func(*span) bool) {
	x.bytes -= h.bytes()
	kept := h.spans[:0]
	for i := range h.spans {
		if keep(&h.spans[i]) {
			kept = append(kept, h.spans[i])
		} else if h.spans[i].until != open {
			x.past--
		}
	}
	clear(h.spans[len(kept):])
	if len(kept) == 0 {
		delete(x.pods.entries, k)
		x.bytes -= TextBytes(len(k.pod))
		x.target.store.index.remove(k, x.target, false)
		return
	}
	if h.spans = kept; cap(kept) > 4*len(kept)+8 {
		h.spans = slices.Clone(kept)
	}
	x.bytes += h.bytes()
}

// forget removes the ended tenures of a pod. The others begin no earlier than now.
func (x *holdings) forget(k podKey, now int64) (found bool) {
	h := x.pods.entries[k]
	if h == nil {
		return false
	}
	x.filter(k, h, func(n *span) bool {
		n.from = max(n.from, now)
		return n.until == open
	})
	return true
}

// rewind lets the open tenures begin no later than stamp, to which the clock was set back.
func (x *holdings) rewind(stamp int64) {
	for _, h := range x.pods.entries {
		for i := range h.spans {
			if n := &h.spans[i]; n.until == open {
				n.from = min(n.from, stamp)
			}
		}
	}
}

// shrink removes the ended tenures if they are many.
func (x *holdings) shrink() {
	if x.past > 64 {
		x.forgetPast(open)
		x.pruneAt = 64
	}
}

// close removes the holdings.
func (x *holdings) close() {
	for k := range x.pods.entries {
		x.target.store.index.remove(k, x.target, false)
	}
	*x = holdings{}
}
