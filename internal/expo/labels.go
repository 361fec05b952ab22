// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// entity is a device whose series are shown, with its labels in a renderer's
// arena: arena[start:attrs] is "{gpu=…", up to the label fields,
// arena[attrs:mid] the attributes that sort before err_code, and
// arena[mid:end] the others and "} ".
type entity struct {
	dev                    *gpu.DeviceSnapshot
	start, attrs, mid, end int
}

// appendIdentity renders the labels of one device in dcgm-exporter's order:
// gpu, UUID, pci_bus_id, device, modelName, those of a MIG instance, the node,
// label fields by name, attributes by name. A MIG instance has its parent's
// UUID.
func (r *renderer) appendIdentity(b []byte, e *entity, all []gpu.DeviceSnapshot) []byte {
	d := &e.dev.Device
	uuid := d.UUID
	if d.MIG != nil {
		uuid = d.MIG.ParentUUID
	}
	e.start = len(b)
	b = append(b, `{gpu="`...)
	b = strconv.AppendInt(b, int64(d.Index), 10)
	b = appendLabel(append(b, `",`...), "UUID", uuid)
	b = appendLabel(append(b, ','), "pci_bus_id", d.PCIBusID)
	b = append(b, `,device="nvidia`...)
	b = strconv.AppendInt(b, int64(d.Minor), 10)
	b = appendLabel(append(b, `",`...), "modelName", d.Model)
	if d.MIG != nil {
		b = appendLabel(append(b, ','), "GPU_I_PROFILE", d.MIG.Profile)
		b = append(b, `,GPU_I_ID="`...)
		b = strconv.AppendInt(b, int64(d.MIG.GPUInstance), 10)
		b = append(b, '"')
	}
	b = append(b, r.hostLabel...)
	for i := range r.labels {
		b = r.labels[i].append(b, &e.dev.Values)
	}
	e.attrs, e.mid = len(b), len(b)
	if o := soleOwner(e.dev, all); r.kubernetes && o != nil {
		b = appendLabel(append(b, ','), "container", o.Container)
		e.mid = len(b)
		b = appendLabel(append(b, ','), "namespace", o.Namespace)
		b = appendLabel(append(b, ','), "pod", o.Pod)
	}
	b = append(b, '}', ' ')
	e.end = len(b)
	return b
}

// soleOwner is who a device's series are labelled with: its owner if that is
// one pod. A device that several pods share belongs to none of them alone;
// gpupilot_gpu_allocation_info lists them all. Compute instances of one GPU
// instance share its series.
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
			} else if o.Pod != sole.Pod || o.Namespace != sole.Namespace {
				return nil
			}
		}
	}
	return sole
}

// sameSeries says whether two devices have the same labels: they are one
// device, or compute instances of one GPU instance.
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

// append writes ,name="value", or nothing where the device has no such value.
func (l *labelField) append(b []byte, v *gpu.Values) []byte {
	if s, ok := v.GetLabel(l.number.field); ok {
		return appendLabel(append(b, ','), l.name, s)
	}
	x, ok := v.GetAt(l.number.index)
	if !ok {
		return b
	}
	b = append(b, ',')
	b = append(b, l.name...)
	b = append(b, '=', '"')
	b = l.number.append(b, x)
	return append(b, '"')
}

// number is how a field's value is written under some name.
type number struct {
	field  gpu.FieldID
	index  gpu.Index
	scale  float64
	format gpu.Format
}

func numberOf(ref gpu.Ref) number {
	i, _ := gpu.IndexOf(ref.Field)
	n := number{field: ref.Field, index: i, scale: ref.Scale, format: gpu.At(i).Format}
	// Percent as a ratio and nanoseconds as seconds have fractions.
	if ref.Scale == fromRatio || ref.Scale == fromSeconds {
		n.format = gpu.Float
	}
	return n
}

func (n *number) append(b []byte, v float64) []byte {
	if n.scale != 1 {
		v /= n.scale
	}
	if n.format == gpu.Float {
		return appendFixed(b, v)
	}
	return appendInteger(b, v)
}
