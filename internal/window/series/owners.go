// SPDX-License-Identifier: Apache-2.0

package series

import (
	"slices"
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

// SetOwners sets the owners of all devices of the target from the time at, when the
// list was collected. The list is complete: a device that is not in it has no owner.
// Samples with the timestamp at belong to the new owners. It returns false if
// MaxDevices, MaxOwners or the memory limit refused a part of the list; that part has
// no owner.
//
// The work is linear in the list and in the tenures of the pods that lose a device.
// It locks the target only.
func (t *Target) SetOwners(at time.Time, list []DeviceOwners) (whole bool) {
	t.store.attempt(func(last bool) (blocked bool) {
		whole, blocked = t.setOwners(at.UnixNano(), list, last)
		return blocked
	})
	return whole
}

// setOwners is SetOwners. If other targets must free memory first, it changes nothing
// and returns blocked; on the last attempt, it omits what has no room instead.
func (t *Target) setOwners(stamp int64, list []DeviceOwners, last bool) (whole, blocked bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed != nil {
		return true, false
	}
	defer t.settle()
	h := &t.holdings
	h.round++
	changed, whole := t.ownerChanges(list)
	if len(changed) == 0 {
		return whole, false
	}
	if v := t.account.reserve(h.costOf(changed)); v == ledger.NoRoom && !last {
		return false, true
	} else if v != ledger.Granted {
		t.refuse(RefusedOwner, len(changed))
		whole = false
		keepCommon(changed)
	}
	h.end(changed)
	h.begin(changed, stamp)
	for _, d := range changed {
		t.devices.setOwners(d, stamp)
	}
	t.facts.owned.Store(int32(t.devices.owned))
	return whole, false
}

// ownerChanges returns the devices whose owners differ, with the new ones as their next.
// It marks each device of the list with the round.
func (t *Target) ownerChanges(list []DeviceOwners) (changed []*device, whole bool) {
	whole = true
	total, h := 0, &t.holdings
	for i := range list {
		d, ok := t.claimed(list[i].Device)
		if !ok {
			whole = false
			continue
		}
		if d.round == h.round {
			continue // listed twice
		}
		d.round = h.round
		owners := validOwners(list[i].Owners)
		if room := MaxOwners - total; len(owners) > room {
			owners = owners[:room:room]
		}
		if n := len(list[i].Owners) - len(owners); n > 0 {
			t.refuse(RefusedOwner, n)
			whole = false
		}
		total += len(owners)
		h.steps += 1 + len(owners)
		if !slices.Equal(d.owners, owners) {
			d.next, changed = owners, append(changed, d)
		}
	}
	for _, d := range t.devices.byUUID.entries {
		h.steps++
		if len(d.owners) > 0 && d.round != h.round {
			d.next, changed = nil, append(changed, d)
		}
	}
	return changed, whole
}

// claimed returns the device of this name, and adds it if there is room.
func (t *Target) claimed(uuid string) (*device, bool) {
	if d := t.devices.byUUID.entries[uuid]; d != nil {
		return d, true
	}
	if !IsDevice(len(uuid)) || len(t.devices.byUUID.entries) >= MaxDevices || t.account.reserve(deviceCost(uuid)) != ledger.Granted {
		t.refuse(RefusedDevice, 1)
		return nil, false
	}
	return t.devices.add(uuid), true
}

// validOwners returns the list, sorted, without owners whose names are too long.
func validOwners(list []gpu.Owner) []gpu.Owner {
	isInvalid := func(o gpu.Owner) bool {
		return !IsOwner(len(o.Namespace), len(o.Pod), len(o.Container), len(o.Replica))
	}
	if slices.ContainsFunc(list, isInvalid) {
		list = slices.DeleteFunc(slices.Clone(list), isInvalid)
	}
	if !slices.IsSortedFunc(list, gpu.ComparePods) {
		list = slices.SortedStableFunc(slices.Values(list), gpu.ComparePods)
	}
	return list
}

// keepCommon removes the new owners from each change: pods lose devices, but no pod
// gets one.
func keepCommon(changed []*device) {
	for _, d := range changed {
		var kept []gpu.Owner
		gpu.EachPod(d.owners, d.next, func(namespace, pod string, before, after bool) {
			if before && after {
				kept = append(kept, gpu.Owner{Namespace: namespace, Pod: pod})
			}
		})
		d.next = kept
	}
}

// Forget begins the tenures of a deleted pod anew, so that a later pod of the same name
// does not get its samples. They are of devices that its node still reports as the pod's.
func (s *Store) Forget(namespace, pod string, now time.Time) {
	for x := s.index.holders(podKey{namespace, pod}); x != nil; x = x.next.Load() {
		x.target.mu.Lock()
		for i := range x.holding.spans {
			x.holding.spans[i].from = max(x.holding.spans[i].from, now.UnixNano())
		}
		x.target.mu.Unlock()
	}
}

// tenures appends the pod's tenures. If node is not nil, it appends those on that node only.
func (s *Store) tenures(dst []tenure, k podKey, node *string) []tenure {
	for x := s.index.holders(k); x != nil; x = x.next.Load() {
		if node == nil || x.target.facts.labels.Load().Node == *node {
			x.target.mu.RLock()
			for _, n := range x.holding.spans {
				dst = append(dst, tenure{x.target, n.device, n.from})
			}
			x.target.mu.RUnlock()
		}
	}
	return dst
}

// Pods returns how many pods hold a device or have metrics of their own.
func (s *Store) Pods() int { return int(s.index.pods.Load()) }
