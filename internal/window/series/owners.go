// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/ledger"
)

// The limits of one target's owners. More are refused and counted in Stats.Refused.
const (
	// MaxDevices is the limit of devices of one target. NVIDIA's driver supports 32
	// GPUs per node (NV_MAX_DEVICES, nvlimits.h), each with at most 7 MIG instances:
	// 256 devices. The limit is four times that.
	MaxDevices = 1024
	// MaxOwners is the limit of pairs of a device and a container that holds it. The
	// kubelet runs 110 pods by default, and 500 in distributions that raise the
	// limit; 500 pods that share 8 GPUs are 4,000 pairs.
	MaxOwners = 4096
	// maxPast is the limit of remembered tenures that have ended.
	maxPast = MaxOwners

	// The lengths of names, in bytes. A pod's name is a DNS subdomain, the
	// other two are DNS labels (RFC 1123, as Kubernetes applies it). A UUID of
	// NVIDIA's has 40 characters, with MIG- and an instance 60.
	maxNamespace = 63
	maxPod       = 253
	maxContainer = 63
	maxReplica   = 128
	maxDevice    = 160
	maxMetric    = 1024
)

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

// DeviceOwners are the containers that hold one device.
type DeviceOwners struct {
	Device string      // as in Key
	Owners []gpu.Owner // sorted by namespace and pod; the store retains the slice
}

// IsOwner reports whether names of these lengths can be a container's: Kubernetes
// does not allow longer ones.
func IsOwner(namespace, pod, container, replica int) bool {
	return namespace > 0 && namespace <= maxNamespace && pod > 0 && pod <= maxPod &&
		container <= maxContainer && replica <= maxReplica
}

// IsDevice reports whether a name of this length can be a device's.
func IsDevice(length int) bool { return length > 0 && length <= maxDevice }

func isOwner(o *gpu.Owner) bool {
	return IsOwner(len(o.Namespace), len(o.Pod), len(o.Container), len(o.Replica))
}

// SetOwners sets the owners of all devices of the target from the time at, when the
// list was collected. The list is complete: a device that is not in it has no owner.
// Samples with the timestamp at belong to the new owners. It returns false if
// MaxDevices, MaxOwners or the memory limit refused a part of the list; that part has
// no owner.
//
// The work is linear in the list and in the tenures of the pods that lose a device.
// It locks the target only.
func (t *Target) SetOwners(at time.Time, list []DeviceOwners) (whole bool) {
	whole, blocked := t.setOwners(at.UnixNano(), list, false)
	if blocked {
		t.store.rebalance()
		whole, _ = t.setOwners(at.UnixNano(), list, true)
	}
	t.store.rebalanceIfDue()
	return whole
}

// setOwners is SetOwners. If other targets must free memory first, it changes nothing
// and returns blocked; on the last attempt, it omits what has no room instead.
func (t *Target) setOwners(stamp int64, list []DeviceOwners, last bool) (whole, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return true, false
	}
	defer t.settle()
	t.round++
	changes, whole := t.ownerChanges(list)
	if len(changes) == 0 {
		return whole, false
	}
	if v := t.reserve(t.costOf(changes)); v == ledger.NoRoom && !last {
		return false, true
	} else if v != ledger.Granted {
		t.refuse(RefusedOwner, len(changes))
		whole = false
		keepCommon(changes)
	}
	t.endTenures(changes, stamp)
	t.beginTenures(changes, stamp)
	if t.past > t.pruneAt {
		t.prune(stamp - int64(t.store.cfg.Span))
	}
	return whole, false
}

type ownerChange struct {
	device *device
	owners []gpu.Owner
}

// ownerChanges returns the devices whose owners differ. It marks each device of the
// list with the round.
func (t *Target) ownerChanges(list []DeviceOwners) (changes []ownerChange, whole bool) {
	whole = true
	total := 0
	for i := range list {
		d, ok := t.claimed(list[i].Device)
		if !ok {
			whole = false
			continue
		}
		if d.round == t.round {
			continue // listed twice
		}
		d.round = t.round
		owners := validOwners(list[i].Owners)
		if room := MaxOwners - total; len(owners) > room {
			owners = owners[:room:room]
		}
		if n := len(list[i].Owners) - len(owners); n > 0 {
			t.refuse(RefusedOwner, n)
			whole = false
		}
		total += len(owners)
		t.steps += 1 + len(owners)
		if !slices.Equal(d.owners, owners) {
			changes = append(changes, ownerChange{d, owners})
		}
	}
	for _, d := range t.devices {
		t.steps++
		if len(d.owners) > 0 && d.round != t.round {
			changes = append(changes, ownerChange{d, nil})
		}
	}
	return changes, whole
}

// claimed returns the device of this name, and adds it if there is room.
func (t *Target) claimed(uuid string) (*device, bool) {
	if d := t.devices[uuid]; d != nil {
		return d, true
	}
	if !IsDevice(len(uuid)) || len(t.devices) >= MaxDevices || t.reserve(deviceCost(uuid)) != ledger.Granted {
		t.refuse(RefusedDevice, 1)
		return nil, false
	}
	return t.device(uuid), true
}

// validOwners returns the list, sorted, without owners whose names are too long.
func validOwners(list []gpu.Owner) []gpu.Owner {
	if slices.ContainsFunc(list, func(o gpu.Owner) bool { return !isOwner(&o) }) {
		list = slices.DeleteFunc(slices.Clone(list), func(o gpu.Owner) bool { return !isOwner(&o) })
	}
	if !slices.IsSortedFunc(list, gpu.ComparePods) {
		list = slices.SortedStableFunc(slices.Values(list), gpu.ComparePods)
	}
	return list
}

func compareToPod(o gpu.Owner, k podKey) int {
	return cmp.Or(cmp.Compare(o.Namespace, k.namespace), cmp.Compare(o.Pod, k.pod))
}

// keepCommon removes the new owners from each change: pods lose devices, but no pod
// gets one.
func keepCommon(changes []ownerChange) {
	for i := range changes {
		c := &changes[i]
		var kept []gpu.Owner
		gpu.EachPod(c.device.owners, c.owners, func(namespace, pod string, before, after bool) {
			if before && after {
				kept = append(kept, gpu.Owner{Namespace: namespace, Pod: pod})
			}
		})
		c.owners = kept
	}
}

// endTenures ends the tenures of pods that lost a device. It reads the tenures of
// each such pod once, also if the pod lost several devices.
func (t *Target) endTenures(changes []ownerChange, stamp int64) {
	for i := range changes {
		c := &changes[i]
		c.device.changed, c.device.next = t.round, c.owners
	}
	for i := range changes {
		gpu.EachPod(changes[i].device.owners, changes[i].owners, func(namespace, pod string, before, after bool) {
			t.steps++
			k := podKey{namespace, pod}
			if h := t.pods[k]; before && !after && h != nil && h.round != t.round {
				h.round = t.round
				t.endTenuresOf(h, k, stamp)
			}
		})
	}
}

func (t *Target) endTenuresOf(h *holding, k podKey, stamp int64) {
	for i := range h.spans {
		t.steps++
		n := &h.spans[i]
		if n.until != open || n.device.changed != t.round {
			continue
		}
		if _, still := sort.Find(len(n.device.next), func(j int) int { return -compareToPod(n.device.next[j], k) }); !still {
			n.until = stamp
			t.past++
		}
	}
}

func (t *Target) beginTenures(changes []ownerChange, stamp int64) {
	for i := range changes {
		d := changes[i].device
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			t.steps++
			if before || !after {
				return
			}
			k := podKey{namespace, pod}
			h := t.pods[k]
			if h == nil {
				h = &holding{}
				t.addHolding(k, h)
			}
			t.lists -= spanBytes(h)
			h.spans = append(h.spans, span{d, stamp, open})
			t.lists += spanBytes(h)
		})
		t.lists += ownerBytes(d.next) - ownerBytes(d.owners)
		t.owned.Add(int32(min(len(d.next), 1) - min(len(d.owners), 1)))
		d.owners, d.next, d.since = d.next, nil, stamp
	}
}

func (t *Target) addHolding(k podKey, h *holding) {
	t.pods[k] = h
	t.podsPeak = max(t.podsPeak, len(t.pods))
	t.keys += TextBytes(len(k.pod))
	t.store.index.add(k, t, h)
}

func (t *Target) removeHolding(k podKey, h *holding) {
	delete(t.pods, k)
	t.lists -= spanBytes(h)
	t.keys -= TextBytes(len(k.pod))
	t.store.index.remove(k, t, false)
}

// prune removes the tenures that ended before a time, and the oldest of the others
// if there are more than maxPast. It sets pruneAt to twice the tenures that are left,
// so that the amortized cost of a tenure is constant.
func (t *Target) prune(before int64) {
	t.forgetPast(before)
	if t.past > maxPast {
		ends := make([]int64, 0, t.past)
		for _, h := range t.pods {
			for _, n := range h.spans {
				if n.until != open {
					ends = append(ends, n.until)
				}
			}
		}
		slices.Sort(ends)
		t.forgetPast(ends[len(ends)-maxPast/2] + 1)
		t.refuse(RefusedHistory, len(ends)-t.past)
	}
	t.pruneAt = min(2*t.past+64, maxPast)
	if t.podsPeak > 64 && len(t.pods) < t.podsPeak/4 {
		t.pods, t.podsPeak = rebuilt(t.pods), len(t.pods)
	}
}

// forgetPast removes the tenures that ended before a time.
func (t *Target) forgetPast(before int64) {
	t.past = 0
	for k, h := range t.pods {
		t.steps += len(h.spans)
		t.filter(k, h, func(n *span) bool { return n.until >= before })
	}
}

// filter keeps the tenures of a pod for which keep returns true, and adds those of
// them that have ended to t.past.
func (t *Target) filter(k podKey, h *holding, keep func(*span) bool) {
	kept := h.spans[:0]
	for i := range h.spans {
		if !keep(&h.spans[i]) {
			continue
		}
		if h.spans[i].until != open {
			t.past++
		}
		kept = append(kept, h.spans[i])
	}
	clear(h.spans[len(kept):])
	if len(kept) == 0 {
		t.removeHolding(k, h)
		return
	}
	t.lists -= spanBytes(h)
	if h.spans = kept; cap(kept) > 4*len(kept)+8 {
		h.spans = slices.Clone(kept)
	}
	t.lists += spanBytes(h)
}

// Forget drops the history of a deleted pod, so that a later pod of the same name
// does not get it. Devices that its node still reports as the pod's count from now
// on.
func (s *Store) Forget(namespace, pod string, now time.Time) {
	k := podKey{namespace, pod}
	for x := s.index.holders(k); x != nil; x = x.next.Load() {
		x.target.forget(k, now.UnixNano())
	}
}

func (t *Target) forget(k podKey, now int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.pods[k]
	if t.closed || h == nil {
		return
	}
	defer t.settle()
	for i := range h.spans {
		if h.spans[i].until != open {
			t.past--
		} else {
			h.spans[i].from = max(h.spans[i].from, now)
		}
	}
	t.filter(k, h, func(n *span) bool { return n.until == open })
}

// tenures appends the pod's tenures that overlap [from, to]. If node is not nil, it
// appends those on that node only.
func (s *Store) tenures(dst []tenure, k podKey, node *string, from, to int64) []tenure {
	for x := s.index.holders(k); x != nil; x = x.next.Load() {
		if node == nil || *x.target.node.Load() == *node {
			dst = x.tenures(dst, from, to)
		}
	}
	return dst
}

func (x *holder) tenures(dst []tenure, from, to int64) []tenure {
	t := x.target
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return dst
	}
	for _, n := range x.holding.spans {
		if n.from <= to && n.until > from {
			dst = append(dst, tenure{t, n.device, n.from, n.until})
		}
	}
	return dst
}

// Pods returns how many pods hold a device or have metrics of their own.
func (s *Store) Pods() int { return int(s.index.pods.Load()) }
