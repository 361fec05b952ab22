// SPDX-License-Identifier: Apache-2.0

package series

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Window is the values of one field of several devices over a time. Its owner reuses
// it, so that repeated reads do not allocate.
type Window struct {
	Devices []DeviceWindow
	MaxAge  time.Duration // the age up to which the newest value counts
}

// DeviceWindow is the values of one device.
type DeviceWindow struct {
	Device string // as in Key
	Index  int    // the exporter's index of the GPU on its node; negative: unknown
	Slices int    // compute slices of its GPU that a MIG instance has; 0: it is none, or they are not known
	// Samples are the values, oldest first; empty if the newest is too old or there is
	// none. A counter's are increases per second.
	Samples []Sample
	// Shared means that the values are those of the whole device, which several pods
	// hold.
	Shared bool
	// Measured means that the device has the field: a value in the window, or soon.
	Measured bool
	owners   []gpu.Owner
}

// Newest returns the newest value.
func (d *DeviceWindow) Newest() (Sample, bool) {
	if len(d.Samples) == 0 {
		return Sample{}, false
	}
	return d.Samples[len(d.Samples)-1], true
}

// Owners returns the pods that hold the device, as its exporter claims. The list is
// read-only.
func (d *DeviceWindow) Owners() []gpu.Owner { return d.owners }

// add appends a device without samples, with the memory of an earlier use.
func (w *Window) add(d *device) *DeviceWindow {
	if n := len(w.Devices); n < cap(w.Devices) {
		w.Devices = w.Devices[:n+1]
	} else {
		w.Devices = append(w.Devices, DeviceWindow{})
	}
	x := &w.Devices[len(w.Devices)-1]
	*x = DeviceWindow{Device: d.uuid, Index: d.place[0] - 1, Slices: d.place[1], Samples: x.Samples[:0], owners: d.owners}
	return x
}

// WindowOn reads the field's values since from of the devices that the pod holds now,
// with the checks of PodOn. A zero from reads the newest values only. A device whose
// newest value is too old has no samples. The result is empty if the pod holds no
// device that counts.
func (r *FieldReader) WindowOn(w *Window, h *Holder, from time.Time) {
	w.Devices, w.MaxAge = w.Devices[:0], r.maxAge
	if r.field == nil {
		return
	}
	var buf [16]tenure
	tenures := r.store.verified(buf[:0], h, r.now, r.maxAge)
	t := bestTarget(tenures, podKey{h.Namespace, h.Pod}, r.field, r.now, r.maxAge)
	if t == nil {
		return
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed != nil {
		return
	}
	q := t.query(podKey{h.Namespace, h.Pod}, r.field, r.now, r.maxAge)
	w.MaxAge = time.Duration(q.keep)
	for i := range tenures {
		if n := &tenures[i]; n.target == t {
			x := w.add(n.device)
			own, hasOwn := n.device.series(r.field.ID)
			x.Measured = hasOwn
			id, ok := t.columns.seriesOf(n.device, q.pod, r.field.ID, q.now)
			if !ok {
				continue
			}
			x.Shared = n.device.isShared() && hasOwn && own == id
			x.Samples = q.since(&t.columns, x.Samples, id, from, n.from)
		}
	}
}

// verified appends the pod's tenures that PodOn accepts.
func (s *Store) verified(dst []tenure, h *Holder, now time.Time, maxAge time.Duration) []tenure {
	tenures := s.claims(dst, h, now, maxAge)
	for i := 0; h.Devices >= 0 && i < len(tenures); {
		if t := tenures[i].target; devicesOn(tenures, t) > h.Devices {
			tenures = slices.DeleteFunc(tenures, func(n tenure) bool { return n.target == t })
			continue
		}
		i++
	}
	return tenures
}

// isRepeated reports whether an earlier tenure is on the same target as tenure i.
func isRepeated(tenures []tenure, i int) bool {
	return slices.ContainsFunc(tenures[:i], func(n tenure) bool { return n.target == tenures[i].target })
}

// bestTarget returns the target with the most and newest values, as newestOf does; nil:
// there is none.
func bestTarget(tenures []tenure, k podKey, f *gpu.Field, now time.Time, maxAge time.Duration) (best *Target) {
	var most gathered
	for i := range tenures {
		t := tenures[i].target
		if isRepeated(tenures, i) {
			continue
		}
		if best == nil && !slices.ContainsFunc(tenures[i:], func(n tenure) bool { return n.target != t }) {
			return t // the usual case: the only one
		}
		g := t.gather(tenures, k, f, now, maxAge)
		if best == nil || g.have > most.have || g.have == most.have && g.at > most.at {
			best, most = t, g
		}
	}
	return best
}

// since appends a series' values from a time on, and the newest only if from is zero. None of
// them is from before held. dst is empty.
func (q *query) since(c *columns, dst []Sample, id uint32, from time.Time, held int64) []Sample {
	if from.IsZero() {
		if v, ok := q.newest(c, id, held); ok {
			dst = append(dst, sampleOf(v))
		}
		return dst
	}
	dst = c.samples(dst, c.series[id].column, max(held, from.UnixNano()), q.now)
	if q.field.PodAgg == gpu.Rate {
		dst = rates(dst)
	}
	if len(dst) > 0 && dst[len(dst)-1].At.UnixNano() < q.now-q.keep {
		return dst[:0]
	}
	return dst
}

// rates replaces the values of a counter by its increases per second since the sample before.
func rates(list []Sample) []Sample {
	for i := len(list) - 1; i > 0; i-- {
		list[i].Value = perSecond(list[i-1], list[i])
	}
	return slices.Delete(list, 0, min(1, len(list)))
}

// perSecond returns a counter's increase per second. A decrease is a restart at zero.
func perSecond(from, to Sample) float64 {
	inc := to.Value - from.Value
	if inc < 0 {
		inc = to.Value
	}
	return inc / to.At.Sub(from.At).Seconds()
}

// NodeWindow reads the field's values since from of all GPUs of a node, owned or not,
// as WindowOn does. Of several exporters, it reads the one of the lowest rank that has
// fresh values. A MIG instance is left out where its GPU has a value, which includes
// it.
func (r *FieldReader) NodeWindow(w *Window, node string, from time.Time) {
	w.Devices, w.MaxAge = w.Devices[:0], r.maxAge
	if r.field == nil {
		return
	}
	for _, t := range r.store.nodes.of(node) {
		t.nodeWindow(r, w, from)
		if slices.ContainsFunc(w.Devices, func(d DeviceWindow) bool { return len(d.Samples) > 0 }) {
			break
		}
	}
	withValue := map[string]bool{}
	for i := range w.Devices {
		withValue[w.Devices[i].Device] = len(w.Devices[i].Samples) > 0
	}
	w.Devices = slices.DeleteFunc(w.Devices, func(d DeviceWindow) bool {
		parent, _, isInstance := strings.Cut(d.Device, "/gi")
		return isInstance && withValue[parent]
	})
	slices.SortFunc(w.Devices, func(a, b DeviceWindow) int { return strings.Compare(a.Device, b.Device) })
}

func (t *Target) nodeWindow(r *FieldReader, w *Window, from time.Time) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	w.Devices = w.Devices[:0]
	q := t.query(podKey{}, r.field, r.now, r.maxAge)
	w.MaxAge = time.Duration(q.keep)
	for _, d := range t.devices.byUUID.entries {
		if id, ok := d.series(r.field.ID); ok {
			x := w.add(d)
			x.Measured = true
			x.Samples = q.since(&t.columns, x.Samples, id, from, 0)
		}
	}
}

// of returns the targets of a node, of the lowest rank first.
func (x *nodeIndex) of(node string) []*Target {
	x.mu.RLock()
	list := slices.Clone(x.targets[node])
	x.mu.RUnlock()
	slices.SortStableFunc(list, func(a, b *Target) int { return int(a.facts.rank()) - int(b.facts.rank()) })
	return list
}

// SetPlace sets Index and Slices of a device. It does nothing for an unknown device.
func (t *Target) SetPlace(device string, index, slices int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.devices.byUUID.entries[device]; d != nil {
		d.place = [2]int{max(index, -1) + 1, slices}
	}
}

// Combine returns the devices' values at each time, combined by an aggregation as in
// Store.Pod, oldest first. It appends to dst. Devices that keep returns false for do not
// count; nil: all count.
func (w *Window) Combine(dst []Sample, how gpu.Aggregation, keep func(*DeviceWindow) bool) []Sample {
	var buf [16][]Sample
	rest := buf[:0] // of each device
	for i := range w.Devices {
		if d := &w.Devices[i]; keep == nil || keep(d) {
			rest = append(rest, d.Samples)
		}
	}
	for {
		oldest := int64(math.MaxInt64)
		for _, of := range rest {
			if len(of) > 0 {
				oldest = min(oldest, of[0].At.UnixNano())
			}
		}
		if oldest == math.MaxInt64 {
			return dst
		}
		g := gathered{want: len(rest)}
		for i, of := range rest {
			if len(of) > 0 && of[0].At.UnixNano() == oldest {
				g.add(oldest, of[0].Value)
				rest[i] = of[1:]
			}
		}
		if s, ok := g.combine(how); ok {
			dst = append(dst, s)
		}
	}
}

// CombineNewest returns the devices' newest values, combined as in Store.Pod.
func (w *Window) CombineNewest(how gpu.Aggregation, keep func(*DeviceWindow) bool) (Sample, bool) {
	var g gathered
	for i := range w.Devices {
		d := &w.Devices[i]
		if keep != nil && !keep(d) {
			continue
		}
		g.want++
		if s, ok := d.Newest(); ok {
			g.add(s.At.UnixNano(), s.Value)
		}
	}
	return g.combine(how)
}
