// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"slices"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// gpus is the identifier of expositions of GPUs.
type gpus struct {
	target *series.Target
	want   gpu.FieldSet // empty: all
	watch  bool         // whether values change is all that tells their age

	slots   map[string]int32 // of the devices, where there are more than few
	devices []device
	pulses  []pulse             // by slot, where values are watched
	owners  []gpu.Owner         // from 1 on; entries say which is whose
	places  map[gpu.Owner]int32 // of the owners, where there are more than few
	names   map[string]struct{} // of the wanted fields, as the target calls them

	text    int64                  // bytes of names
	refused [series.NumRefused]int // what was left out since that was last counted
}

// The bounds of what is remembered of a target's devices and owners, live ones
// and those that are gone; beyond, all is learned anew from the next page. A MIG
// instance has two names at most.
const (
	maxSlots  = 2 * series.MaxDevices
	maxOwners = 2 * series.MaxOwners
)

// few is how many devices or owners are looked for one after another: a map of
// them takes more than they do.
const few = 16

// device is one GPU or MIG instance of a target.
type device struct {
	key         string
	is          int32   // the slot under which its series stand; itself but for MIG devices by UUID
	success     float64 // when its agent last read it, s since 1970; 0: it does not say
	lastSuccess float64 // the same, at the last page that was stored
}

func newGPUs(t *series.Target, want gpu.FieldSet) *gpus {
	g := &gpus{target: t, want: want}
	g.reset()
	return g
}

func (g *gpus) reset() {
	g.slots, g.devices, g.pulses = nil, nil, nil
	g.owners, g.names = make([]gpu.Owner, 1), map[string]struct{}{}
	g.places, g.text = nil, 0
}

// size is what is remembered, in bytes. Maps take about twice their entries.
func (g *gpus) size() int64 {
	const owner = int64(unsafe.Sizeof(gpu.Owner{}))
	return g.text + int64(len(g.slots))*2*(16+4) + int64(cap(g.devices))*int64(unsafe.Sizeof(device{})) +
		int64(cap(g.pulses))*int64(unsafe.Sizeof(pulse{})) +
		int64(cap(g.owners))*owner + int64(len(g.places))*2*(owner+4) + int64(len(g.names))*2*16
}

func (g *gpus) identify(l *line, m *labelMemo) entry {
	switch string(l.name) {
	case "gpupilot_collection_timestamp_seconds":
		return entry{use: collected}
	case "gpupilot_collection_interval_seconds":
		return entry{use: interval}
	case "gpupilot_collection_duration_seconds":
		return entry{use: took}
	case "gpupilot_device_last_success_timestamp_seconds":
		if slot, ok := g.slot(l); ok {
			return entry{use: lastSuccess, slot: slot}
		}
		return entry{}
	case "gpupilot_gpu_allocation_info":
		if slot, ok := g.slot(l); ok {
			return entry{use: allocation, slot: slot, owner: g.owner(l)}
		}
		return entry{}
	case "gpupilot_pod_gpu_utilization_ratio":
		return g.share(l, gpu.GPUUtil, 100)
	case "gpupilot_pod_gpu_memory_used_bytes":
		return g.share(l, gpu.FBUsed, 1./(1<<20))
	case "gpupilot_mig_device_info":
		g.alias(l)
		return entry{}
	}
	return g.identifyValue(l, m)
}

func (g *gpus) identifyValue(l *line, m *labelMemo) entry {
	r, field, ok := m.resolve(l.name)
	if !ok || gpu.At(field).Kind == gpu.Label {
		return entry{}
	}
	wanted := g.want == (gpu.FieldSet{}) || g.want.Has(field)
	if !wanted && !g.watch {
		return entry{}
	}
	x := g.labels(l)
	if !x.known {
		return entry{}
	}
	e := entry{slot: x.slot, field: field, scale: r.Scale, copy: x.copy}
	if g.watch {
		e.beat = evidenceOf(r.Field, e.copy)
	}
	if !wanted {
		return e
	}
	e.use, e.owner = value, x.owner
	if e.ref, ok = g.target.Ref(series.Key{Device: g.devices[x.slot].key, Field: r.Field}); !ok {
		e.use = ignored
	}
	if _, ok := g.names[string(l.name)]; !ok {
		g.names[string(l.name)] = struct{}{}
		g.text += series.TextBytes(len(l.name))
	}
	return e
}

// labels is what a value's labels say. Of labels that name too much every line
// counts as refused.
func (g *gpus) labels(l *line) (x labelFacts) {
	if l.facts != nil && l.facts.known {
		return *l.facts
	}
	refused := g.refused
	if x.slot, x.known = g.slot(l); !x.known {
		return x
	}
	x.owner, x.copy = g.owner(l), l.get("vgpu") != nil
	if l.facts != nil && refused == g.refused {
		*l.facts = x
	}
	return x
}

// share is what a pod's processes use of a device, in the field's unit.
func (g *gpus) share(l *line, f gpu.FieldID, scale float64) entry {
	slot, ok := g.slot(l)
	namespace, pod := l.get("namespace"), l.get("pod")
	if !ok || !series.IsOwner(len(namespace), len(pod), 0, 0) || g.want != (gpu.FieldSet{}) && !g.want.HasID(f) {
		return entry{}
	}
	e := entry{use: share, slot: slot, scale: scale}
	e.field, _ = gpu.IndexOf(f)
	key := series.Key{Device: g.devices[g.devices[slot].is].key, Field: f, Pod: string(namespace) + "/" + string(pod)}
	if e.ref, ok = g.target.Ref(key); !ok {
		e.use = ignored
	}
	return e
}

// slot finds the device that a line is about. A MIG instance has its GPU's
// UUID and its own GPU_I_ID.
func (g *gpus) slot(l *line) (int32, bool) {
	uuid, other := l.get("UUID"), l.get("uuid")
	if uuid == nil {
		uuid = other
	}
	// One of two is a pod's own label: dcgm-exporter shows those by their names.
	if len(uuid) == 0 || other != nil && string(other) != string(uuid) {
		return 0, false
	}
	gi := l.get("GPU_I_ID")
	if !series.IsDevice(len(uuid) + len("/gi") + len(gi)) {
		g.refused[series.RefusedName]++
		return 0, false
	}
	if len(gi) > 0 {
		return g.slotOf(instanceKey(uuid, gi))
	}
	return g.slotOf(string(uuid))
}

func instanceKey(uuid, instance []byte) string { return string(uuid) + "/gi" + string(instance) }

// slotOf is the device of this name; there is none where it is one too many.
func (g *gpus) slotOf(key string) (int32, bool) {
	slot, ok := g.slots[key]
	for i := 0; i < len(g.devices) && g.slots == nil && !ok; i++ {
		slot, ok = int32(i), g.devices[i].key == key
	}
	if ok {
		return slot, true
	}
	if len(g.devices) >= maxSlots {
		g.refused[series.RefusedDevice]++
		return 0, false
	}
	slot = int32(len(g.devices))
	g.devices = append(g.devices, device{key: key, is: slot})
	switch {
	case g.slots != nil:
		g.slots[key] = slot
	case len(g.devices) > few:
		g.slots = map[string]int32{}
		for i := range g.devices {
			g.slots[g.devices[i].key] = int32(i)
		}
	}
	g.text += series.TextBytes(len(key))
	return slot, true
}

// alias takes note of which instance of which GPU a MIG device is: agents name
// it by its own UUID where dcgm-exporter's names do not bind them.
func (g *gpus) alias(l *line) {
	uuid, parent, gi := l.get("uuid"), l.get("parent_uuid"), l.get("gpu_instance")
	if !series.IsDevice(len(uuid)) || !series.IsDevice(len(parent)+len("/gi")+len(gi)) || len(parent) == 0 || len(gi) == 0 {
		return
	}
	of, ok := g.slotOf(instanceKey(parent, gi))
	slot, known := g.slotOf(string(uuid))
	if ok && known {
		g.devices[slot].is = of
	}
}

// ownerLabels are the names that the labels of a device's pod may have: as
// seen through a Prometheus that had its own, as dcgm-exporter has them with
// -o, and plainly.
var ownerLabels = [...][3]string{
	{"exported_namespace", "exported_pod", "exported_container"},
	{"pod_namespace", "pod_name", "container_name"},
	{"namespace", "pod", "container"},
}

// owner is the place in g.owners of the pod that a line names, 0 if none. A line
// that names two names none: with --kubernetes-enable-pod-labels, dcgm-exporter
// shows the labels of pods by their names, and tenants choose them.
func (g *gpus) owner(l *line) int32 {
	var namespace, pod, container []byte
	for _, names := range ownerLabels {
		ns, name := l.get(names[0]), l.get(names[1])
		switch {
		case len(ns) == 0 || len(name) == 0:
		case pod == nil:
			namespace, pod, container = ns, name, l.get(names[2])
		case string(ns) != string(namespace) || string(name) != string(pod):
			return 0
		case container == nil:
			container = l.get(names[2])
		}
	}
	if pod == nil {
		return 0
	}
	replica := l.get("replica")
	if replica == nil {
		replica = l.get("vgpu")
	}
	if !series.IsOwner(len(namespace), len(pod), len(container), len(replica)) {
		g.refused[series.RefusedName]++
		return 0
	}
	return g.placeOf(gpu.Owner{Namespace: string(namespace), Pod: string(pod), Container: string(container), Replica: string(replica)})
}

func (g *gpus) placeOf(o gpu.Owner) int32 {
	place, ok := g.places[o]
	for i := 1; i < len(g.owners) && g.places == nil && !ok; i++ {
		place, ok = int32(i), g.owners[i] == o
	}
	if ok {
		return place
	}
	if len(g.owners) > maxOwners {
		g.refused[series.RefusedOwner]++
		return 0
	}
	if last := &g.owners[len(g.owners)-1]; last.Namespace == o.Namespace {
		o.Namespace = last.Namespace // one copy for a row of owners
	}
	if last := &g.owners[len(g.owners)-1]; last.Container == o.Container {
		o.Container = last.Container
	}
	place = int32(len(g.owners))
	g.owners = append(g.owners, o)
	switch {
	case g.places != nil:
		g.places[o] = place
	case place > few:
		g.places = map[gpu.Owner]int32{}
		for i := range g.owners {
			g.places[g.owners[i]] = int32(i)
		}
	}
	g.text += series.TextBytes(len(o.Pod)) + series.TextBytes(len(o.Replica))
	return place
}

func (g *gpus) success(slot int32, seconds float64) { g.devices[slot].success = seconds }

// settle is called after a page whose lines were not the last one's. Where a
// shared device's series is there both for the device and in a copy for each
// sharer, as dcgm-exporter has utilisation and memory with
// --kubernetes-virtual-gpus, the copies are not the device's value: they are
// taken out of the page.
func (g *gpus) settle(p *page) {
	whole := map[series.Ref]bool{}
	copies := false
	for _, e := range p.entries {
		if e.use == value && !e.copy {
			whole[e.ref] = true
		}
		copies = copies || e.copy
	}
	if !copies {
		return
	}
	for i := range p.entries {
		if e := &p.entries[i]; e.use == value && e.copy && whole[e.ref] {
			e.use = ignored
		}
	}
	p.points = slices.DeleteFunc(p.points, func(x point) bool { return x.copy && whole[x.ref] })
}

// held lists who holds which device: whom the allocations name, which are all
// sharers, or where there is none whom the devices' own labels name. The work
// is linear in the entries, but for sorting the sharers of a device.
func (g *gpus) held(entries []entry) []series.DeviceOwners {
	info := slices.ContainsFunc(entries, func(e entry) bool { return e.use == allocation })
	last := make([]int32, len(g.devices)) // the owner of each device that was seen last
	bySlot := make([][]gpu.Owner, len(g.devices))
	n := 0
	for _, e := range entries {
		if e.owner <= 0 || (e.use == allocation) != info {
			continue
		}
		slot := g.devices[e.slot].is
		if last[slot] == e.owner {
			continue
		}
		if last[slot] == 0 {
			n++
		}
		last[slot] = e.owner
		bySlot[slot] = append(bySlot[slot], g.owners[e.owner])
	}
	list := make([]series.DeviceOwners, 0, n)
	for slot, owners := range bySlot {
		if len(owners) > 0 {
			slices.SortFunc(owners, compareOwners)
			list = append(list, series.DeviceOwners{Device: g.devices[slot].key, Owners: slices.Clip(slices.Compact(owners))})
		}
	}
	return list
}

func compareOwners(a, b gpu.Owner) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.Container, b.Container), cmp.Compare(a.Replica, b.Replica),
	)
}

// overgrown says whether most of what is remembered is of lines that are gone,
// or leaves no room for others.
func (g *gpus) overgrown(entries int) bool {
	return len(g.devices) >= maxSlots || len(g.owners) > maxOwners ||
		len(g.devices) > 2*entries+64 || len(g.owners) > 2*entries+64
}

// fill makes a batch of a page's points. Left out are the values of a device
// that its agent has not read since the last page or that judge holds, and lines that carry a time
// of their own which is more than lineMaxAge behind the newest.
func (g *gpus) fill(p *page, b *series.Batch) {
	newest := p.newestLine()
	for i := range g.devices {
		d := &g.devices[i]
		if d.is != int32(i) && d.success > g.devices[d.is].success {
			g.devices[d.is].success = d.success
		}
	}
	for _, x := range p.points {
		d := &g.devices[x.slot]
		if d.lags(&p.meta) || g.holds(x.slot) || x.stamp != 0 && newest-x.stamp > lineMaxAge.Milliseconds() {
			continue
		}
		// Containers of a pod stand side by side.
		if n := len(b.Points); x.share && n > 0 && b.Points[n-1].Ref == x.ref {
			b.Points[n-1].Value += x.value
			continue
		}
		b.Add(x.ref, x.value)
	}
	for i := range g.devices {
		g.devices[i].lastSuccess, g.devices[i].success = g.devices[i].success, 0
	}
}

// lags says whether the device's values are those of an earlier collection.
func (d *device) lags(m *meta) bool {
	switch {
	case d.success == 0 || m.collected == 0:
		return false
	case d.lastSuccess != 0:
		return d.success == d.lastSuccess // whatever its clock does
	}
	return d.success < m.collected-m.interval
}

// lineMaxAge is the age beyond which a line's value is no value of this
// scrape, gpu.MaxAge of a second's interval.
const lineMaxAge = 5 * time.Second
