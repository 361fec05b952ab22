// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// tenure is the time in which a pod held a device, [from, until) in ns.
type tenure struct {
	target      *Target
	device      *device
	from, until int64 // until is open until the device is given away
}

const open = math.MaxInt64

// DeviceOwners are the containers that hold one device.
type DeviceOwners struct {
	Device string      // as in Key
	Owners []gpu.Owner // sorted; the store keeps the slice
}

// SetOwners says who holds each of the target's devices from at on: at is when
// that was collected, and the list is whole, so a device that it lacks is
// nobody's. Where nothing changed nothing happens. Samples at at itself are
// the new owners'.
func (t *Target) SetOwners(at time.Time, list []DeviceOwners) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	stamp := at.UnixNano()
	var changes []ownerChange
	for _, o := range list {
		d := t.device(o.Device)
		if !slices.Equal(d.owners, o.Owners) {
			changes = append(changes, ownerChange{d, o.Owners})
		}
	}
	for uuid, d := range t.devices {
		if len(d.owners) > 0 && !slices.ContainsFunc(list, func(o DeviceOwners) bool { return o.Device == uuid }) {
			changes = append(changes, ownerChange{d, nil})
		}
	}
	if len(changes) == 0 {
		return
	}
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.name] != t {
		return // dropped meanwhile
	}
	for _, c := range changes {
		s.moveDevice(t, c, stamp)
	}
	if s.moves -= len(changes); s.moves < 0 {
		for k, e := range s.pods {
			s.prune(k, e, stamp)
		}
		s.moves = len(s.pods) + 1024
	}
}

type ownerChange struct {
	device *device
	owners []gpu.Owner
}

// moveDevice ends the tenures of the pods that lost the device and begins
// those of the pods that got it. t.mu and s.mu are held.
func (s *Store) moveDevice(t *Target, c ownerChange, stamp int64) {
	d := c.device
	for _, o := range d.owners {
		if !holds(c.owners, o) {
			s.endTenure(podKey{o.Namespace, o.Pod}, t, d, stamp)
		}
	}
	for _, o := range c.owners {
		if !holds(d.owners, o) {
			s.beginTenure(podKey{o.Namespace, o.Pod}, t, d, stamp)
		}
	}
	t.owned.Add(int32(min(len(c.owners), 1) - min(len(d.owners), 1)))
	d.owners, d.since = c.owners, stamp
}

// holds says whether a container of o's pod is among the owners.
func holds(owners []gpu.Owner, o gpu.Owner) bool {
	return slices.ContainsFunc(owners, func(p gpu.Owner) bool {
		return p.Namespace == o.Namespace && p.Pod == o.Pod
	})
}

func (s *Store) endTenure(k podKey, t *Target, d *device, stamp int64) {
	e := s.pods[k]
	if e == nil {
		return
	}
	for i := range e.tenures {
		if n := &e.tenures[i]; n.target == t && n.device == d && n.until == open {
			n.until = stamp
		}
	}
	s.prune(k, e, stamp)
}

func (s *Store) beginTenure(k podKey, t *Target, d *device, stamp int64) {
	e := s.entry(k)
	s.prune(k, e, stamp)
	for _, n := range e.tenures {
		if n.target == t && n.device == d && n.until == open {
			return // a second container of the pod
		}
	}
	s.pods[k] = e
	e.tenures = append(e.tenures, tenure{t, d, stamp, open})
}

// prune forgets the tenures that ended before the window began or with their
// target.
func (s *Store) prune(k podKey, e *podEntry, now int64) {
	e.tenures = slices.DeleteFunc(e.tenures, func(n tenure) bool {
		return n.until < now-int64(s.cfg.Span) || n.target.dropped
	})
	s.dropIfEmpty(k, e)
}

// eachTenure calls f with the tenures of those who hold the target's devices
// now, and takes away those for which f is false. t.mu is held.
func (t *Target) eachTenure(f func(*tenure) bool) {
	s := t.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range t.devices {
		for _, o := range d.owners {
			k := podKey{o.Namespace, o.Pod}
			e := s.pods[k]
			if e == nil {
				continue
			}
			kept := e.tenures[:0]
			for _, n := range e.tenures {
				if n.target != t || n.device != d || n.until != open || f(&n) {
					kept = append(kept, n)
				}
			}
			clear(e.tenures[len(kept):])
			e.tenures = kept
			s.dropIfEmpty(k, e)
		}
	}
}

// Forget is called when a pod is gone: what it used before now is not given to
// a later pod of the same name. Devices that its node still shows as its own
// count from now on.
func (s *Store) Forget(namespace, pod string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := podKey{namespace, pod}
	e := s.pods[k]
	if e == nil {
		return
	}
	e.tenures = slices.DeleteFunc(e.tenures, func(n tenure) bool { return n.until != open })
	for i := range e.tenures {
		e.tenures[i].from = max(e.tenures[i].from, now.UnixNano())
	}
	s.dropIfEmpty(k, e)
}

// Pods returns how many pods hold a device or have metrics of their own.
func (s *Store) Pods() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.pods)
}
