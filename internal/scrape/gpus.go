// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// gpus is the identifier of expositions of GPUs.
type gpus struct {
	target  *series.Target
	resolve gpu.Resolve
	want    gpu.FieldSet // empty: all
	watch   bool         // whether values change is all that tells their age

	slots   map[string]int32
	devices []device
	pulses  []pulse             // by slot, where values are watched
	owners  []gpu.Owner         // from 1 on; entries say which is whose
	names   map[string]struct{} // of the wanted fields, as the target calls them
}

// device is one GPU or MIG instance of a target.
type device struct {
	key         string
	is          int32   // the slot under which its series stand; itself but for MIG devices by UUID
	success     float64 // when its agent last read it, s since 1970; 0: it does not say
	lastSuccess float64 // the same, at the last page that was stored
}

func newGPUs(t *series.Target, resolve gpu.Resolve, want gpu.FieldSet) *gpus {
	g := &gpus{target: t, resolve: resolve, want: want}
	g.reset()
	return g
}

func (g *gpus) reset() {
	g.slots, g.devices, g.pulses = map[string]int32{}, nil, nil
	g.owners, g.names = make([]gpu.Owner, 1), map[string]struct{}{}
}

func (g *gpus) identify(l *line) entry {
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
	return g.identifyValue(l)
}

func (g *gpus) identifyValue(l *line) entry {
	r, ok := g.resolve(string(l.name))
	if !ok {
		return entry{}
	}
	field, ok := gpu.IndexOf(r.Field)
	if !ok || gpu.At(field).Kind == gpu.Label {
		return entry{}
	}
	wanted := g.want == (gpu.FieldSet{}) || g.want.Has(field)
	if !wanted && !g.watch {
		return entry{}
	}
	slot, ok := g.slot(l)
	if !ok {
		return entry{}
	}
	e := entry{slot: slot, field: field, scale: r.Scale, copy: l.get("vgpu") != nil}
	if g.watch {
		e.beat = evidenceOf(r.Field, e.copy)
	}
	if !wanted {
		return e
	}
	e.use, e.owner = value, g.owner(l)
	if e.ref, ok = g.target.Ref(series.Key{Device: g.devices[slot].key, Field: r.Field}); !ok {
		e.use = ignored
	}
	g.names[string(l.name)] = struct{}{}
	return e
}

// share is what a pod's processes use of a device, in the field's unit.
func (g *gpus) share(l *line, f gpu.FieldID, scale float64) entry {
	slot, ok := g.slot(l)
	namespace, pod := l.get("namespace"), l.get("pod")
	if !ok || len(namespace) == 0 || len(pod) == 0 || g.want != (gpu.FieldSet{}) && !g.want.HasID(f) {
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
	uuid := l.get("UUID")
	if uuid == nil {
		uuid = l.get("uuid")
	}
	if len(uuid) == 0 {
		return 0, false
	}
	if gi := l.get("GPU_I_ID"); len(gi) > 0 {
		return g.slotOf(instanceKey(uuid, gi)), true
	}
	return g.slotOf(string(uuid)), true
}

func instanceKey(uuid, instance []byte) string { return string(uuid) + "/gi" + string(instance) }

func (g *gpus) slotOf(key string) int32 {
	slot, ok := g.slots[key]
	if !ok {
		slot = int32(len(g.devices))
		g.slots[key] = slot
		g.devices = append(g.devices, device{key: key, is: slot})
	}
	return slot
}

// alias takes note of which instance of which GPU a MIG device is: agents name
// it by its own UUID where dcgm-exporter's names do not bind them.
func (g *gpus) alias(l *line) {
	uuid, parent, gi := l.get("uuid"), l.get("parent_uuid"), l.get("gpu_instance")
	if len(uuid) == 0 || len(parent) == 0 || len(gi) == 0 {
		return
	}
	of := g.slotOf(instanceKey(parent, gi))
	g.devices[g.slotOf(string(uuid))].is = of
}

// ownerLabels are the names that the labels of a device's pod may have: as
// seen through a Prometheus that had its own, as dcgm-exporter has them with
// -o, and plainly.
var ownerLabels = [...][3]string{
	{"exported_namespace", "exported_pod", "exported_container"},
	{"pod_namespace", "pod_name", "container_name"},
	{"namespace", "pod", "container"},
}

// owner is the place in g.owners of the pod that a line names, 0 if none.
func (g *gpus) owner(l *line) int32 {
	for _, names := range ownerLabels {
		namespace, pod := l.get(names[0]), l.get(names[1])
		if len(namespace) == 0 || len(pod) == 0 {
			continue
		}
		replica := l.get("replica")
		if replica == nil {
			replica = l.get("vgpu")
		}
		o := gpu.Owner{Namespace: string(namespace), Pod: string(pod), Container: string(l.get(names[2])), Replica: string(replica)}
		if n := len(g.owners); g.owners[n-1] == o {
			return int32(n - 1)
		}
		g.owners = append(g.owners, o)
		return int32(len(g.owners) - 1)
	}
	return 0
}

func (g *gpus) success(slot int32, seconds float64) { g.devices[slot].success = seconds }

// settle is called after a page whose lines were not the last one's. It says
// whether that page must be read again: where a shared device's series is
// there both for the device and in a copy for each sharer, as dcgm-exporter
// has utilisation and memory with --kubernetes-virtual-gpus, the copies are
// not the device's value.
func (g *gpus) settle(entries []entry) (again bool) {
	whole := map[series.Ref]bool{}
	for _, e := range entries {
		if e.use == value && !e.copy {
			whole[e.ref] = true
		}
	}
	for i := range entries {
		if e := &entries[i]; e.use == value && e.copy && whole[e.ref] {
			e.use, again = ignored, true
		}
	}
	return again
}

// held lists who holds which device: whom the allocations name, which are all
// sharers, or where there is none whom the devices' own labels name.
func (g *gpus) held(entries []entry) []series.DeviceOwners {
	info := slices.ContainsFunc(entries, func(e entry) bool { return e.use == allocation })
	bySlot := map[int32][]gpu.Owner{}
	for _, e := range entries {
		if e.owner > 0 && (e.use == allocation) == info {
			slot := g.devices[e.slot].is
			bySlot[slot] = append(bySlot[slot], g.owners[e.owner])
		}
	}
	list := make([]series.DeviceOwners, 0, len(bySlot))
	for slot, owners := range bySlot {
		slices.SortFunc(owners, compareOwners)
		list = append(list, series.DeviceOwners{Device: g.devices[slot].key, Owners: slices.Compact(owners)})
	}
	return list
}

func compareOwners(a, b gpu.Owner) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.Container, b.Container), cmp.Compare(a.Replica, b.Replica),
	)
}

// overgrown says whether most of what is remembered is of lines that are gone.
func (g *gpus) overgrown(entries int) bool {
	return len(g.devices) > 2*entries+64 || len(g.owners) > 2*entries+64
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
