// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// processFamilies are the metrics of --process-metrics: the share of a device
// that each pod's processes use.
func processFamilies() []family {
	return []family{
		always("gpupilot_pod_gpu_utilization_ratio", Gauge,
			"Share of the device's time used by the container's processes in about the last second, 0 to 1.",
			func(b []byte, in *renderInput) []byte {
				return podUsage(b, in, "gpupilot_pod_gpu_utilization_ratio", func(u *gpu.Usage) gpu.Reading { return u.Utilization }, appendFixed)
			}),
		always("gpupilot_pod_gpu_memory_used_bytes", Gauge,
			"Memory of the device held by the container's processes.",
			func(b []byte, in *renderInput) []byte {
				return podUsage(b, in, "gpupilot_pod_gpu_memory_used_bytes", func(u *gpu.Usage) gpu.Reading { return u.Memory }, appendInteger)
			}),
		meta("gpupilot_gpu_processes", Gauge,
			"Processes that use the device, by place: pod, host (outside pods), unknown_pod (the pod's name is unknown), unseen (not in /proc).",
			processCounts),
		meta("gpupilot_other_gpu_utilization_ratio", Gauge,
			"Share of the device's time used by processes outside known pods, by place.",
			func(b []byte, in *renderInput) []byte {
				return otherUsage(b, in, "gpupilot_other_gpu_utilization_ratio", func(d *gpu.DeviceSnapshot, k int) gpu.Reading { return d.Others[k].Utilization }, appendFixed)
			}),
		meta("gpupilot_other_gpu_memory_used_bytes", Gauge,
			"Memory of the device held by processes outside known pods, by place.",
			func(b []byte, in *renderInput) []byte {
				return otherUsage(b, in, "gpupilot_other_gpu_memory_used_bytes", func(d *gpu.DeviceSnapshot, k int) gpu.Reading { return d.Others[k].Memory }, appendInteger)
			}),
		meta("gpupilot_process_list_up", Gauge, "1 if the device's processes were listed well and not long ago.",
			func(b []byte, in *renderInput) []byte {
				for i := range in.snap.Devices {
					d := &in.snap.Devices[i]
					b = appendDevice(append(b, "gpupilot_process_list_up{"...), d)
					b = append(appendBool(append(b, "} "...), d.ProcessesErr == nil && !d.ProcessesRead.IsZero()), '\n')
				}
				return b
			}),
	}
}

// places are the values of the label place, by gpu.PlaceKind, for processes
// whose pod is unknown.
var places = [...]string{gpu.Unseen: "unseen", gpu.OnHost: "host", gpu.InPod: "unknown_pod"}

func appendDevice(b []byte, d *gpu.DeviceSnapshot) []byte {
	b = appendLabel(b, "uuid", d.UUID)
	b = append(b, `,gpu="`...)
	return append(strconv.AppendInt(b, int64(d.Index), 10), '"')
}

func podUsage(b []byte, in *renderInput, name string, of func(*gpu.Usage) gpu.Reading, number func([]byte, float64) []byte) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		for j := range d.Usage {
			u := &d.Usage[j]
			r := of(u)
			if !r.OK {
				continue
			}
			b = appendDevice(append(append(b, name...), '{'), d)
			b = appendLabel(append(b, ','), "namespace", u.Owner.Namespace)
			b = appendLabel(append(b, ','), "pod", u.Owner.Pod)
			b = appendLabel(append(b, ','), "container", u.Owner.Container)
			b = append(number(append(b, "} "...), r.Value), '\n')
		}
	}
	return b
}

func otherUsage(b []byte, in *renderInput, name string, of func(*gpu.DeviceSnapshot, int) gpu.Reading, number func([]byte, float64) []byte) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		for k := range d.Others {
			if r := of(d, k); r.OK && d.Others[k].Processes > 0 {
				b = appendPlace(append(append(b, name...), '{'), d, places[k])
				b = append(number(b, r.Value), '\n')
			}
		}
	}
	return b
}

func processCounts(b []byte, in *renderInput) []byte {
	const name = "gpupilot_gpu_processes{"
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		if d.ProcessesRead.IsZero() {
			continue
		}
		n := 0
		for j := range d.Usage {
			n += d.Usage[j].Processes
		}
		b = appendPlace(append(b, name...), d, "pod")
		b = append(strconv.AppendInt(b, int64(n), 10), '\n')
		for k := range d.Others {
			b = appendPlace(append(b, name...), d, places[k])
			b = append(strconv.AppendInt(b, int64(d.Others[k].Processes), 10), '\n')
		}
	}
	return b
}

func appendPlace(b []byte, d *gpu.DeviceSnapshot, place string) []byte {
	return append(appendLabel(append(appendDevice(b, d), ','), "place", place), "} "...)
}

// role selects the fields of which an entity has series.
type role uint8

const (
	ofAll    role = iota
	ofOthers      // a sharer's copy of the fields that exist only for the whole device
	ofWhole       // the whole device, for the fields of which sharers have a share
	ofShare       // a sharer's share of these fields
)

// shows reports whether an entity has a series of the field.
func (e *entity) shows(f gpu.FieldID) bool {
	switch shared := f == gpu.GPUUtil || f == gpu.FBUsed; e.role {
	case ofOthers:
		return !shared
	case ofWhole, ofShare:
		return shared
	}
	return true
}

// value returns the entity's value of a field.
func (e *entity) value(n *number) (gpu.Number, bool) {
	if n.field == gpu.XIDErrors {
		if last, ok := gpu.LastXID(e.dev.XIDs, e.dev.GPUXIDs); ok { // newer than the last read
			return gpu.Whole(int64(last.Code)), true
		}
	}
	if e.role != ofShare {
		return n.of(&e.dev.Values)
	}
	if n.field == gpu.FBUsed {
		return gpu.Real(e.memory.Value / (1 << 20)), e.memory.OK
	}
	return gpu.Real(e.utilization.Value * 100), e.utilization.OK
}

// addShares adds, in virtual-GPU mode, the whole device and the share of each
// sharer, as measured by its processes. dcgm-exporter shows utilisation and
// used memory in this way, and copies the other fields. It reports whether it
// added any.
func (r *renderer) addShares(d *gpu.DeviceSnapshot) bool {
	in := &r.in
	if !in.cfg.VirtualGPUs || !in.cfg.Processes || !in.cfg.Kubernetes || len(d.Owners) == 0 {
		return false
	}
	first := len(in.entities)
	r.owners(d, r.addOwner)
	copies := len(in.entities)
	for i := first; i < copies; i++ {
		e := &in.entities[i]
		e.role = ofOthers
		share := *e
		share.role = ofShare
		for j := range d.Usage {
			u := &d.Usage[j]
			if o := e.owner; u.Owner.Namespace == o.Namespace && u.Owner.Pod == o.Pod && u.Owner.Container == o.Container {
				share.memory, share.utilization, share.uid = u.Memory, u.Utilization, u.PodUID
			}
		}
		in.entities = append(in.entities, share)
	}
	in.entities = append(in.entities, entity{dev: d, stale: r.stale, role: ofWhole})
	return true
}
