// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Holder is a pod with what the API server says of it. An exporter's claim
// about the pod counts only as far as it agrees with that.
type Holder struct {
	Namespace, Pod string
	Node           string // where it runs; exporters of other nodes do not count
	Devices        int    // the most devices that it can hold; negative: not known
}

// PodOn is Pod of a pod about which the API server was asked. It ignores
//
//   - targets of other nodes,
//   - the devices that a target of a higher rank gives to the pod, while a
//     target of a lower rank on that node says who holds devices and does not
//     give this one to the pod,
//   - targets that give the pod more devices than it can hold.
func (s *Store) PodOn(h Holder, f gpu.FieldID, now time.Time, maxAge time.Duration) (Reading, bool) {
	r := s.FieldReader(f, now, maxAge)
	var handle PodHandle
	return r.PodOn(&h, &handle)
}

// podOnMany is PodOn of a pod that has devices of several targets.
func (s *Store) podOnMany(h *Holder, f *gpu.Field, now time.Time, maxAge time.Duration) (Reading, bool) {
	var buf [16]tenure
	k := podKey{h.Namespace, h.Pod}
	tenures := s.claims(buf[:0], h, now, maxAge)
	for i := 0; h.Devices >= 0 && i < len(tenures); {
		if t := tenures[i].target; devicesOn(tenures, t) > h.Devices {
			tenures = slices.DeleteFunc(tenures, func(n tenure) bool { return n.target == t })
			continue
		}
		i++
	}
	return newestOf(tenures, k, f, now, maxAge)
}

// devicesOn is how many of the tenures are open ones on t.
func devicesOn(tenures []tenure, t *Target) (n int) {
	for i := range tenures {
		if tenures[i].target == t && tenures[i].until == open {
			n++
		}
	}
	return n
}

// claims appends the pod's tenures that may count: of its own node, and not
// contradicted by a target of a lower rank.
func (s *Store) claims(dst []tenure, h *Holder, now time.Time, maxAge time.Duration) []tenure {
	dst = s.tenures(dst, podKey{h.Namespace, h.Pod}, &h.Node, now.UnixNano(), open)
	lowest, found := s.nodes.authority(h.Node, now.UnixNano(), maxAge)
	if !found {
		return dst
	}
	confirmed := func(n tenure) bool {
		return slices.ContainsFunc(dst, func(o tenure) bool {
			return o.target.rank.Load() == lowest && o.until == open && o.device.uuid == n.device.uuid
		})
	}
	// In place: those of the lowest rank come first and are kept, so confirmed always sees them.
	slices.SortStableFunc(dst, func(a, b tenure) int { return cmp.Compare(a.target.rank.Load(), b.target.rank.Load()) })
	kept := dst[:0]
	for _, n := range dst {
		if n.target.rank.Load() <= lowest || confirmed(n) {
			kept = append(kept, n)
		}
	}
	return kept
}

// nodeIndex lists the exporters of GPUs of each node. Nothing else is locked
// while its lock is held.
type nodeIndex struct {
	mu      sync.RWMutex
	targets map[string][]*Target
}

func (x *nodeIndex) add(node string, t *Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.targets[node] = append(x.targets[node], t)
	x.note(node)
}

// note tells the targets of a node whether they are alone. x.mu is held.
func (x *nodeIndex) note(node string) {
	for _, t := range x.targets[node] {
		t.alone.Store(len(x.targets[node]) == 1)
	}
}

func (x *nodeIndex) remove(node string, t *Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := slices.DeleteFunc(x.targets[node], func(o *Target) bool { return o == t })
	t.alone.Store(false)
	if x.targets[node] = left; len(left) == 0 {
		delete(x.targets, node)
	}
	x.note(node)
}

// authority is the lowest rank of the node's targets that have collected within
// maxAge, or within three of their intervals, and name an owner of a device.
func (x *nodeIndex) authority(node string, now int64, maxAge time.Duration) (rank uint32, found bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, t := range x.targets[node] {
		if r := t.rank.Load(); r < rank || !found {
			age := now - t.newest.Load()
			if age <= max(int64(maxAge), t.keep.Load()) && t.owned.Load() > 0 {
				rank, found = r, true
			}
		}
	}
	return rank, found
}

// all are the targets of all nodes.
func (x *nodeIndex) all() []*Target {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*Target, 0, len(x.targets))
	for _, list := range x.targets {
		out = append(out, list...)
	}
	return out
}

// Claim is what one exporter says about who holds devices.
type Claim struct {
	Target  string
	Labels  TargetLabels
	At      time.Time      // when the target last collected; the epoch: it has not yet
	Devices []DeviceOwners // that have an owner; the owners are shared, not to be changed
}

// Claims calls f with each exporter of GPUs of which a device has an owner, those
// of one node one after another. A claim and its list of devices are reused when f
// returns.
func (s *Store) Claims(f func(*Claim)) {
	var c Claim
	for _, t := range s.nodes.all() {
		if t.owned.Load() == 0 {
			continue
		}
		s.mu.RLock()
		c.Target, c.Labels = t.name, t.labels
		s.mu.RUnlock()
		c.At, c.Devices = time.Unix(0, t.newest.Load()), c.Devices[:0]
		t.mu.RLock()
		for uuid, d := range t.devices {
			if len(d.owners) > 0 {
				c.Devices = append(c.Devices, DeviceOwners{Device: uuid, Owners: d.owners})
			}
		}
		t.mu.RUnlock()
		if len(c.Devices) > 0 {
			f(&c)
		}
	}
}
