// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// gpus is the identifier for exporters of GPUs.
type gpus struct {
	target *series.Target
	want   gpu.FieldSet // empty: all
	watch  bool         // the age of values is estimated from their changes

	slots   map[string]int32 // the devices' indexes by name; nil up to few devices
	devices []device
	ages    []ageState          // by slot, if watch is set
	owners  []gpu.Owner         // from 1 on; entry.owner is the index
	places  map[gpu.Owner]int32 // the owners' indexes; nil up to few owners
	names   map[string]struct{} // the target's names of the wanted fields

	labels  labeller
	tenants tenants

	text    int64                  // bytes of names
	refused [series.NumRefused]int // refusals not yet reported to the store
}

// The limits of the devices and owners that are remembered for a target, including
// those that have left the page. Beyond, the next page is parsed from scratch. A MIG
// instance has at most two names.
const (
	maxSlots  = 2 * series.MaxDevices
	maxOwners = 2 * series.MaxOwners
)

// few is the number of devices or owners up to which a list is searched linearly: a
// map would take more memory than the list.
const few = 16

// device is one GPU or MIG instance of a target.
type device struct {
	key         string
	canonical   int32   // the slot with the series; another one for a MIG device by UUID
	success     float64 // when the agent last read it, s since 1970; 0: not on the page
	lastSuccess float64 // success on the last stored page
	placed      placed  // that the target knows
}

func newGPUs(t *series.Target, want gpu.FieldSet) *gpus {
	g := &gpus{target: t, want: want}
	g.reset()
	return g
}

func (g *gpus) reset() {
	g.slots, g.devices, g.ages = nil, nil, nil
	g.owners, g.names = make([]gpu.Owner, 1), map[string]struct{}{}
	g.places, g.text = nil, 0
	g.labels.forget()
	g.tenants.again = false
}

// size returns the bytes that are remembered. A map takes about twice its entries.
func (g *gpus) size() int64 {
	const owner = int64(unsafe.Sizeof(gpu.Owner{}))
	return g.text + g.labels.size() + g.tenants.size() + int64(len(g.slots))*2*(16+4) + int64(cap(g.devices))*int64(unsafe.Sizeof(device{})) +
		int64(cap(g.ages))*int64(unsafe.Sizeof(ageState{})) +
		int64(cap(g.owners))*owner + int64(len(g.places))*2*(owner+4) + int64(len(g.names))*2*16
}

func (g *gpus) identify(l *line, m *labelMemo) entry {
	e := g.classify(l, m)
	g.labels.expose(&e, l, g.spacesOf(&e, l))
	return e
}

// spacesOf returns the namespaces whose queries may read a line: of the pods that hold its device, else the one that
// the line names.
func (g *gpus) spacesOf(e *entry, l *line) []string {
	if g.labels.names == nil || !g.labels.names.scoped() {
		return nil
	}
	if e.use == value {
		if of := g.tenants.held[g.devices[g.devices[e.slot].canonical].key]; len(of) > 0 {
			return of
		}
	}
	for _, names := range ownerLabels {
		if ns := l.Get(names[0]); len(ns) > 0 && len(l.Get(names[1])) > 0 {
			return []string{string(ns)}
		}
	}
	return nil
}

func (g *gpus) classify(l *line, m *labelMemo) entry {
	switch string(l.Name) {
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
	r, field, ok := m.resolve(l.Name)
	if !ok || gpu.At(field).Kind == gpu.Label {
		return entry{}
	}
	wanted := g.want == (gpu.FieldSet{}) || g.want.Has(field)
	if !wanted && !g.watch && len(g.tenants.held) == 0 {
		return entry{}
	}
	x := g.factsOf(l)
	if !x.known {
		return entry{}
	}
	payer := ""
	if !wanted {
		payer = g.tenants.payer(g.devices[g.devices[x.slot].canonical].key, field)
		if wanted = payer != ""; !wanted && !g.watch {
			return entry{}
		}
	}
	e := entry{slot: x.slot, field: field, scale: r.Scale, copy: x.copy}
	if g.watch {
		e.evidence = evidenceOf(r.Field, e.copy)
	}
	if !wanted {
		return e
	}
	e.use, e.owner = value, x.owner
	if e.ref, ok = g.target.Ref(series.Key{Device: g.devices[x.slot].key, Field: r.Field, PaidBy: payer}); !ok {
		e.use = ignored
	} else {
		g.setPlace(l, x.slot)
	}
	if _, ok := g.names[string(l.Name)]; !ok {
		g.names[string(l.Name)] = struct{}{}
		g.text += series.TextBytes(len(l.Name))
	}
	return e
}

// placed is the index of a GPU on its node, plus 1, and the compute slices of a MIG instance; 0: not known.
type placed struct{ index, slices int }

// setPlace tells the target a place, once for each device and after a change.
func (g *gpus) setPlace(l *line, slot int32) {
	var p placed
	if n, err := strconv.ParseUint(string(l.Get("gpu")), 10, 16); err == nil {
		p.index = int(n) + 1
	}
	p.slices, _ = price.Slices(string(l.Get("GPU_I_PROFILE")))
	if d := &g.devices[slot]; d.placed != p && p != (placed{}) {
		g.target.SetPlace(d.key, p.index-1, p.slices)
		d.placed = p
	}
}

// factsOf returns the facts that a value's labels give. Facts with a refusal are not
// memoized, so that every line with them is counted.
func (g *gpus) factsOf(l *line) (x labelFacts) {
	if l.facts != nil && l.facts.known {
		return *l.facts
	}
	refused := g.refused
	if x.slot, x.known = g.slot(l); !x.known {
		return x
	}
	x.owner, x.copy = g.owner(l), l.Get("vgpu") != nil
	if l.facts != nil && refused == g.refused {
		*l.facts = x
	}
	return x
}

// share identifies a line with a container's use of a device, in the field's unit.
func (g *gpus) share(l *line, f gpu.FieldID, scale float64) entry {
	slot, ok := g.slot(l)
	namespace, pod := l.Get("namespace"), l.Get("pod")
	if !ok || !series.IsOwner(len(namespace), len(pod), 0, 0) || g.want != (gpu.FieldSet{}) && !g.want.HasID(f) {
		return entry{}
	}
	e := entry{use: share, slot: slot, scale: scale}
	e.field, _ = gpu.IndexOf(f)
	key := series.Key{Device: g.devices[g.devices[slot].canonical].key, Field: f, Pod: string(namespace) + "/" + string(pod)}
	if e.ref, ok = g.target.Ref(key); !ok {
		e.use = ignored
	}
	return e
}

// slot returns the slot of the line's device. A MIG instance has its GPU's UUID and
// its own GPU_I_ID.
func (g *gpus) slot(l *line) (int32, bool) {
	uuid, other := l.Get("UUID"), l.Get("uuid")
	if uuid == nil {
		uuid = other
	}
	if uuid == nil {
		return g.amdSlot(l)
	}
	// If both are there, one is a pod's label, which dcgm-exporter copies by name.
	if len(uuid) == 0 || other != nil && string(other) != string(uuid) {
		return 0, false
	}
	gi := l.Get("GPU_I_ID")
	if !series.IsDevice(len(uuid) + len("/gi") + len(gi)) {
		g.refused[series.RefusedName]++
		return 0, false
	}
	if len(gi) > 0 {
		return g.slotOf(instanceKey(uuid, gi))
	}
	return g.slotOf(string(uuid))
}

// amdSlot returns the slot of a device of AMD's device-metrics-exporter: by its UUID,
// which is an optional label, else by the serial number of the card and the index of the
// partition, which are there by default.
func (g *gpus) amdSlot(l *line) (int32, bool) {
	uuid, serial, id := l.Get("gpu_uuid"), l.Get("serial_number"), l.Get("gpu_id")
	if len(uuid) == 0 && (len(serial) == 0 || len(id) == 0) {
		return 0, false
	}
	if !series.IsDevice(max(len(uuid), len(serial)+1+len(id))) {
		g.refused[series.RefusedName]++
		return 0, false
	}
	if len(uuid) > 0 {
		return g.slotOf(string(uuid))
	}
	return g.slotOf(string(serial) + "/" + string(id))
}

func instanceKey(uuid, instance []byte) string { return string(uuid) + "/gi" + string(instance) }

// slotOf returns the slot of the device of this name, and adds it if it is new. It
// returns false if there are maxSlots already.
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
	g.devices = append(g.devices, device{key: key, canonical: slot})
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

// alias records the GPU and the instance of a MIG device's UUID. An agent's own
// metrics name a MIG device by its UUID, dcgm-exporter's by GPU and instance.
func (g *gpus) alias(l *line) {
	uuid, parent, gi := l.Get("uuid"), l.Get("parent_uuid"), l.Get("gpu_instance")
	if !series.IsDevice(len(uuid)) || !series.IsDevice(len(parent)+len("/gi")+len(gi)) || len(parent) == 0 || len(gi) == 0 {
		return
	}
	of, ok := g.slotOf(instanceKey(parent, gi))
	slot, known := g.slotOf(string(uuid))
	if ok && known {
		g.devices[slot].canonical = of
	}
}

// ownerLabels are the possible names of a pod's labels: after a Prometheus that had
// labels of the same names, of dcgm-exporter with -o, and the usual ones.
var ownerLabels = [...][3]string{
	{"exported_namespace", "exported_pod", "exported_container"},
	{"pod_namespace", "pod_name", "container_name"},
	{"namespace", "pod", "container"},
}

// owner returns the index in g.owners of the line's pod; 0 if it has none or names
// two. With --kubernetes-enable-pod-labels, dcgm-exporter adds the labels of pods,
// which tenants choose.
func (g *gpus) owner(l *line) int32 {
	var namespace, pod, container []byte
	for _, names := range ownerLabels {
		ns, name := l.Get(names[0]), l.Get(names[1])
		switch {
		case len(ns) == 0 || len(name) == 0:
		case pod == nil:
			namespace, pod, container = ns, name, l.Get(names[2])
		case string(ns) != string(namespace) || string(name) != string(pod):
			return 0
		case container == nil:
			container = l.Get(names[2])
		}
	}
	if pod == nil {
		return 0
	}
	replica := l.Get("replica")
	if replica == nil {
		replica = l.Get("vgpu")
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
		o.Namespace = last.Namespace // consecutive owners share one string
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

// settle removes the copies of a shared device's series from a page that also has
// the device's own series. With --kubernetes-virtual-gpus, dcgm-exporter adds a copy
// of utilisation and memory for each sharer. It is called after a page whose lines
// differ from the last one's.
func (g *gpus) settle(p *Reader) {
	if !slices.ContainsFunc(p.entries, func(e entry) bool { return e.copy }) {
		return
	}
	whole := map[series.Ref]bool{}
	for _, e := range p.entries {
		if e.use == value && !e.copy {
			whole[e.ref] = true
		}
	}
	for i := range p.entries {
		if e := &p.entries[i]; e.use == value && e.copy && whole[e.ref] {
			e.use = ignored
		}
	}
	p.points = slices.DeleteFunc(p.points, func(x point) bool { return x.copy && whole[x.ref] })
}

// deviceOwners lists the owners of the devices. They come from the allocation lines,
// which name all sharers, or without such lines from the labels of the values. The
// work is linear in the entries, except for sorting the sharers of a device.
func (g *gpus) deviceOwners(entries []entry) []series.DeviceOwners {
	info := slices.ContainsFunc(entries, func(e entry) bool { return e.use == allocation })
	last := make([]int32, len(g.devices)) // the last owner of each device so far
	bySlot := make([][]gpu.Owner, len(g.devices))
	n := 0
	for _, e := range entries {
		if e.owner <= 0 || (e.use == allocation) != info {
			continue
		}
		slot := g.devices[e.slot].canonical
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

// overgrown reports whether most of the remembered devices or owners have left the
// page, or a limit is reached.
func (g *gpus) overgrown(entries int) bool {
	return g.labels.again || g.tenants.again || len(g.devices) >= maxSlots || len(g.owners) > maxOwners ||
		len(g.devices) > 2*entries+64 || len(g.owners) > 2*entries+64
}

// fill adds a page's values to a batch. It omits the values of a device that the
// agent has not read since the last page, or that assess found unchanged. It omits
// lines with a timestamp that is more than lineMaxAge before the newest.
func (g *gpus) fill(p *Reader, b *series.Batch) {
	newest := p.NewestLine()
	for i := range g.devices {
		d := &g.devices[i]
		if d.canonical != int32(i) && d.success > g.devices[d.canonical].success {
			g.devices[d.canonical].success = d.success
		}
	}
	for _, x := range p.points {
		d := &g.devices[x.slot]
		if d.lags(&p.Meta) || g.isUnchanged(x.slot) || x.stamp != 0 && newest-x.stamp > lineMaxAge.Milliseconds() {
			continue
		}
		// The shares of a pod's containers are consecutive; they are summed.
		if n := len(b.Points); x.share && n > 0 && b.Points[n-1].Ref == x.ref {
			b.Points[n-1].Value += x.value
			continue
		}
		b.Add(x.ref, x.value)
	}
	p.fillOwn(b)
	for i := range g.devices {
		g.devices[i].lastSuccess, g.devices[i].success = g.devices[i].success, 0
	}
}

// lags reports whether the device's values are those of an earlier collection.
func (d *device) lags(m *Meta) bool {
	switch {
	case d.success == 0 || m.Collected == 0:
		return false
	case d.lastSuccess != 0:
		return d.success == d.lastSuccess // also correct if the agent's clock is set back
	}
	return d.success < m.Collected-m.Interval
}

// lineMaxAge is the age of a line's timestamp beyond which its value is omitted:
// gpu.MaxAge for an interval of one second.
const lineMaxAge = 5 * time.Second
