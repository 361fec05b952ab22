// SPDX-License-Identifier: Apache-2.0

package series

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Holder is the API server's facts about a pod. An exporter's claim about the pod
// counts only if it agrees with them.
type Holder struct {
	Namespace, Pod string
	Node           string // the pod's node; exporters of other nodes are ignored
	Devices        int    // the most devices that the pod can hold; negative: unknown
}

// PodOn is Pod with the API server's facts about the pod. It ignores
//
//   - targets of other nodes,
//   - a device that a target of a higher rank assigns to the pod, while a target
//     of a lower rank on that node assigns devices, but not this one to the pod,
//   - targets that assign more devices to the pod than it can hold.
func (s *Store) PodOn(h Holder, f gpu.FieldID, now time.Time, maxAge time.Duration) (Reading, bool) {
	r := s.FieldReader(f, now, maxAge)
	var handle PodHandle
	return r.PodOn(&h, &handle)
}

// podOnMany is PodOn for a pod with devices on several targets.
func (s *Store) podOnMany(h *Holder, f *gpu.Field, now time.Time, maxAge time.Duration) (Reading, bool) {
	var buf [16]tenure
	k := podKey{h.Namespace, h.Pod}
	tenures := s.verified(buf[:0], h, now, maxAge)
	return newestOf(tenures, k, f, now, maxAge)
}

// devicesOn returns the number of tenures on t.
func devicesOn(tenures []tenure, t *Target) (n int) {
	for i := range tenures {
		if tenures[i].target == t {
			n++
		}
	}
	return n
}

// claims appends the pod's tenures on its own node that no target of a lower rank
// contradicts.
func (s *Store) claims(dst []tenure, h *Holder, now time.Time, maxAge time.Duration) []tenure {
	dst = s.tenures(dst, podKey{h.Namespace, h.Pod}, &h.Node)
	lowest, found := s.nodes.authority(h.Node, now, maxAge)
	if !found {
		return dst
	}
	confirmed := func(n tenure) bool {
		return slices.ContainsFunc(dst, func(o tenure) bool {
			return o.target.facts.rank() == lowest && o.device.uuid == n.device.uuid
		})
	}
	// Filter in place: the tenures of the lowest rank come first and are kept, so that confirmed can read them.
	slices.SortStableFunc(dst, func(a, b tenure) int { return cmp.Compare(a.target.facts.rank(), b.target.facts.rank()) })
	kept := dst[:0]
	for _, n := range dst {
		if n.target.facts.rank() <= lowest || confirmed(n) {
			kept = append(kept, n)
		}
	}
	return kept
}

// nodeIndex lists the GPU exporters of each node. No other lock is taken while its
// lock is held.
type nodeIndex struct {
	mu      sync.RWMutex
	targets map[string][]*Target
}

func (x *nodeIndex) add(node string, t *Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.targets[node] = append(x.targets[node], t)
	x.updateAlone(node)
}

// updateAlone updates alone of a node's targets. The caller holds x.mu.
func (x *nodeIndex) updateAlone(node string) {
	for _, t := range x.targets[node] {
		t.facts.alone.Store(len(x.targets[node]) == 1)
	}
}

func (x *nodeIndex) remove(node string, t *Target) {
	x.mu.Lock()
	defer x.mu.Unlock()
	left := slices.DeleteFunc(x.targets[node], func(o *Target) bool { return o == t })
	t.facts.alone.Store(false)
	if x.targets[node] = left; len(left) == 0 {
		delete(x.targets, node)
	}
	x.updateAlone(node)
}

// authority returns the lowest rank of the node's targets that assign devices. It
// ignores targets whose last collection is older than maxAge and than three of their
// intervals.
func (x *nodeIndex) authority(node string, now time.Time, maxAge time.Duration) (rank uint8, found bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, t := range x.targets[node] {
		if r := t.facts.rank(); r < rank || !found {
			if now.UnixNano()-t.facts.newest.Load() <= int64(t.Keep(maxAge)) && t.facts.owned.Load() > 0 {
				rank, found = r, true
			}
		}
	}
	return rank, found
}

// NodeRead returns the time of the newest collection of a node's exporters, and the age up
// to which a value of theirs counts if that is above a reader's; found is false if no
// exporter of the node is read.
func (s *Store) NodeRead(node string) (newest time.Time, keep time.Duration, found bool) {
	at := int64(0)
	s.nodes.mu.RLock()
	defer s.nodes.mu.RUnlock()
	for _, t := range s.nodes.targets[node] {
		at, keep, found = max(at, t.facts.newest.Load()), t.Keep(keep), true
	}
	return time.Unix(0, at), keep, found
}

// all returns the targets of all nodes.
func (x *nodeIndex) all() []*Target {
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]*Target, 0, len(x.targets))
	for _, list := range x.targets {
		out = append(out, list...)
	}
	return out
}

// Claim is the assignment of devices to pods by one exporter.
type Claim struct {
	Target  string
	Labels  TargetLabels
	At      time.Time      // the target's last collection; the epoch: none yet
	Devices []DeviceOwners // the devices with an owner; the lists of owners are read-only
}

// Claims calls f for each GPU exporter with an owned device, grouped by node. The
// claim and its list of devices are reused after f returns.
func (s *Store) Claims(f func(*Claim)) {
	var c Claim
	for _, t := range s.nodes.all() {
		if t.facts.owned.Load() == 0 {
			continue
		}
		c.Target, c.Labels = t.name, *t.facts.labels.Load()
		c.At, c.Devices = time.Unix(0, t.facts.newest.Load()), c.Devices[:0]
		t.mu.RLock()
		for uuid, d := range t.devices.byUUID.entries {
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
