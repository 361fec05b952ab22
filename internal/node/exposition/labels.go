// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"math"
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// entity is a device with one of its owners and jobs, whose series are shown.
// Its labels are in a renderer's arena: arena[start:attrs] is "{gpu=…", up to
// the label fields, arena[attrs:mid] pod labels and the attributes that sort
// before err_code, and arena[mid:end] the others and "} ".
type entity struct {
	dev                    *gpu.DeviceSnapshot
	stale                  bool       // its values are too old: only what has happened to it is shown
	owner                  *gpu.Owner // nil: no owner, or several
	job                    string     // empty: no job
	role                   role
	memory, utilization    gpu.Reading // of a share: bytes, 0 to 1
	uid                    string      // of a share's pod, if known
	start, attrs, mid, end int
}

// appendIdentity renders the labels of one device in dcgm-exporter's order:
// gpu, UUID, pci_bus_id, device, modelName, those of a MIG instance, the node,
// label fields by name, pod labels, attributes by name. A MIG instance has its
// parent's UUID.
func (r *renderer) appendIdentity(b []byte, e *entity) []byte {
	d := &e.dev.Device
	uuid := d.UUID
	if d.MIG != nil {
		uuid = d.MIG.ParentUUID
	}
	e.start = len(b)
	b = append(b, `{gpu="`...)
	b = strconv.AppendInt(b, int64(d.Index), 10)
	b = r.label(append(b, '"'), r.names.uuid, uuid)
	b = r.label(b, "pci_bus_id", d.PCIBusID)
	b = r.numbered(b, "device", "nvidia", d.Index) // the index, as in dcgm-exporter, not the device file's number
	if name := r.shown("modelName"); r.cfg.DashedModel && name != "" {
		b = appendDashed(append(b, ','), name, d.Model)
	} else {
		b = r.label(b, "modelName", d.Model)
	}
	if d.MIG != nil {
		b = r.label(b, "GPU_I_PROFILE", d.MIG.Profile)
		b = r.numbered(b, "GPU_I_ID", "", d.MIG.GPUInstance)
	}
	b = append(b, r.hostLabel...)
	for i := range r.labels {
		b = r.labels[i].append(b, &e.dev.Values)
	}
	e.attrs = len(b)
	b = r.appendAttributes(b, e)
	b = append(b, '}', ' ')
	e.end = len(b)
	return b
}

// appendAttributes renders the labels of the owner.
func (r *renderer) appendAttributes(b []byte, e *entity) []byte {
	o := e.owner
	var pod gpu.Pod
	if o != nil {
		pod = r.in.snap.Pods[gpu.PodName{Namespace: o.Namespace, Name: o.Pod}]
		if !r.cfg.VirtualGPUs { // dcgm-exporter writes them in this mode only
			for _, l := range pod.Labels {
				if !r.reserved[l.Name] {
					b = r.label(b, l.Name, l.Value)
				}
			}
		}
		b = r.label(b, r.names.container, o.Container)
		if o.Claim != nil {
			b = r.appendClaim(b, o.Claim)
		}
	}
	e.mid = len(b)
	if e.job != "" {
		b = r.label(b, "hpc_job", e.job)
	}
	if o == nil || o.Pod == "" { // no owner, or a container without Kubernetes
		return b
	}
	if r.cfg.OldNamespace {
		b = r.label(b, "pod_name", o.Pod)
		b = r.label(b, "pod_namespace", o.Namespace)
	} else {
		b = r.label(b, "namespace", o.Namespace)
		b = r.label(b, "pod", o.Pod)
	}
	uid := ""
	if r.cfg.PodUID || e.role == ofShare { // dcgm-exporter always writes it for shares
		uid = cmp.Or(pod.UID, e.uid)
	}
	if uid != "" {
		b = r.label(b, "pod_uid", uid)
	}
	if r.cfg.VirtualGPUs && o.Replica != "" {
		b = r.label(b, "vgpu", o.Replica)
	}
	return b
}

// appendClaim renders the resource claim through which a device is held.
func (r *renderer) appendClaim(b []byte, c *gpu.Claim) []byte {
	b = r.label(b, "dra_claim_name", c.Name)
	b = r.label(b, "dra_claim_namespace", c.Namespace)
	b = r.label(b, "dra_device_name", c.Device)
	b = r.label(b, "dra_driver_name", c.Driver)
	if c.MIGUUID != "" || c.ParentUUID != "" {
		b = r.label(b, "dra_mig_device_uuid", c.MIGUUID)
		b = r.label(b, "dra_mig_profile", c.MIGProfile)
	}
	return r.label(b, "dra_pool_name", c.Pool)
}

// numbered writes a label whose value is a prefix and a number.
func (r *renderer) numbered(b []byte, name, prefix string, n int) []byte {
	if name = r.shown(name); name == "" {
		return b
	}
	b = append(append(append(b, ','), name...), `="`...)
	b = strconv.AppendInt(append(b, prefix...), int64(n), 10)
	return append(b, '"')
}

// labelNames are the labels that --use-old-namespace renames.
type labelNames struct{ uuid, container string }

func namesOf(old bool) labelNames {
	if old {
		return labelNames{"uuid", "container_name"}
	}
	return labelNames{"UUID", "container"}
}

// reservedNames are label names that a pod label must not have.
func reservedNames(cfg *Config) map[string]bool {
	m := map[string]bool{}
	for _, n := range []string{
		"gpu", "UUID", "uuid", "pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "GPU_I_ID", "hostname", "Hostname",
		"container", "namespace", "pod", "container_name", "pod_name", "pod_namespace", "pod_uid", "vgpu", "hpc_job",
		"err_code", "err_msg", "window_size_in_ms", "clock_event", "xid", "health_watch", "health_error_code",
		"peer_gpu", "link_status", "dra_claim_name", "dra_claim_namespace", "dra_device_name", "dra_driver_name",
		"dra_mig_device_uuid", "dra_mig_profile", "dra_pool_name", "__name__", "le", "quantile",
	} {
		m[n] = true
	}
	for _, l := range cfg.Collectors.Labels {
		m[l.Name] = true
	}
	for _, l := range cfg.Relabel.Static {
		m[l.Name] = true
	}
	for _, to := range cfg.Relabel.Rename {
		m[to] = true
	}
	return m
}

// owners calls f for each owner that gets a copy of the device's series. In
// virtual-GPU mode these are all sharers, else the containers that hold it
// through a resource claim, else the sole owner; nil without an owner.
func (r *renderer) owners(d *gpu.DeviceSnapshot, f func(*gpu.Owner)) {
	all := r.in.snap.Devices
	switch {
	case !r.cfg.Kubernetes && !r.cfg.Containers:
		f(nil)
		return
	case !r.cfg.VirtualGPUs:
		if !r.claimants(d, f) {
			f(soleOwner(d, all))
		}
		return
	}
	n := 0
	for i := range all {
		if !sameSeries(&all[i].Device, &d.Device) {
			continue
		}
		for j := range all[i].Owners {
			n++
			f(&all[i].Owners[j])
		}
	}
	if n == 0 {
		f(nil)
	}
}

// claimants calls f for each container that holds the device through a resource
// claim, with its first claim, and reports whether there is one. dcgm-exporter
// copies the series in the same way, and shows no other owner of such a device.
func (r *renderer) claimants(d *gpu.DeviceSnapshot, f func(*gpu.Owner)) bool {
	var last *gpu.Owner
	all, n := r.in.snap.Devices, 0
	for i := range all {
		if !sameSeries(&all[i].Device, &d.Device) {
			continue
		}
		for j := range all[i].Owners { // sorted, so that the claims of one container are adjacent
			o := &all[i].Owners[j]
			if o.Claim == nil || last != nil && last.Namespace == o.Namespace && last.Pod == o.Pod && last.Container == o.Container {
				continue
			}
			last = o
			if n++; n <= maxClaimants {
				f(o)
			} else {
				r.in.totals.claimants++
			}
		}
	}
	return last != nil
}

// maxClaimants limits the copies of a device's series. A claim may be reserved
// for 256 pods, but a pod may have any number of containers.
const maxClaimants = 256

// soleOwner returns the owner in the labels of a device's series; nil unless
// one pod holds the device alone. gpupilot_gpu_allocation_info lists the pods
// that share one. Compute instances of one GPU instance share its series.
func soleOwner(d *gpu.DeviceSnapshot, all []gpu.DeviceSnapshot) *gpu.Owner {
	var sole *gpu.Owner
	for i := range all {
		if !sameSeries(&all[i].Device, &d.Device) {
			continue
		}
		for j := range all[i].Owners {
			o := &all[i].Owners[j]
			if sole == nil {
				sole = o
			} else if o.Pod != sole.Pod || o.Namespace != sole.Namespace || o.Pod == "" && o.Container != sole.Container {
				return nil
			}
		}
	}
	return sole
}

// sameSeries reports whether two devices have the same labels: they are the
// same device, or compute instances of one GPU instance.
func sameSeries(a, b *gpu.Device) bool {
	if a.UUID == b.UUID {
		return true
	}
	return a.MIG != nil && b.MIG != nil &&
		a.MIG.GPUInstance == b.MIG.GPUInstance && a.MIG.ParentUUID == b.MIG.ParentUUID
}

// labelField is a label whose value is a field.
type labelField struct {
	name   string
	number number
}

// append writes ,name="value", or nothing if the device has no value.
func (l *labelField) append(b []byte, v *gpu.Values) []byte {
	if s, ok := v.GetLabel(l.number.field); ok {
		return appendLabel(append(b, ','), l.name, s)
	}
	x, ok := l.number.of(v)
	if !ok {
		return b
	}
	b = append(b, ',')
	b = append(b, l.name...)
	b = append(b, '=', '"')
	b = l.number.append(b, x)
	return append(b, '"')
}

// number is the format of a field's value under one name.
type number struct {
	field  gpu.FieldID
	index  gpu.Index
	scale  float64
	format gpu.Format
	lo, hi float64 // the valid range, in the field's unit
	passed bool    // the field is not in the table: its unit is unknown, and its value says its format

	lasting bool // see gpu.FieldID.IsLasting
}

// of returns the field's value.
func (n *number) of(v *gpu.Values) (gpu.Number, bool) {
	if n.passed {
		return v.Passed(n.field)
	}
	return v.NumberAt(n.index)
}

// sane reports whether v is in the field's range. A value outside is counted
// and not shown.
func (n *number) sane(v float64) bool { return n.lo <= v && v <= n.hi }

// bounds are the valid range of a unit's values. A temperature may be below 0,
// and a ratio a little above 1 where the library divides two samples.
func bounds(u gpu.Unit) (lo, hi float64) {
	switch u {
	case gpu.Percent:
		return 0, 100
	case gpu.Ratio:
		return 0, 1.05
	case gpu.Celsius:
		return -100, 500
	}
	return 0, math.MaxFloat64
}

func numberOf(ref gpu.Ref) number {
	i, known := gpu.IndexOf(ref.Field)
	if !known {
		return number{
			field: ref.Field, scale: 1, format: gpu.Float, lo: -math.MaxFloat64, hi: math.MaxFloat64, passed: true, lasting: ref.Field.IsLasting(),
		}
	}
	n := number{field: ref.Field, index: i, scale: ref.Scale, format: gpu.At(i).Format, lasting: ref.Field.IsLasting()}
	n.lo, n.hi = bounds(gpu.At(i).Unit)
	// Percent as a ratio and nanoseconds as seconds have fractions.
	if ref.Scale == names.FromRatio || ref.Scale == names.FromSeconds {
		n.format = gpu.Float
	}
	return n
}

func (n *number) append(b []byte, v gpu.Number) []byte {
	if v.Whole {
		if n.passed || n.format == gpu.Integer && n.scale == 1 {
			return strconv.AppendInt(b, v.Int, 10)
		}
		if per := int64(n.scale); v.Int > exactFloat && float64(per) == n.scale {
			return appendQuotient(b, uint64(v.Int), uint64(per), n.format)
		}
	}
	x := v.Float
	if n.scale != 1 {
		x /= n.scale
	}
	if n.format == gpu.Float {
		return appendFixed(b, x)
	}
	return appendInteger(b, x)
}
