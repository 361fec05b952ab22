// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// partEntity is a part whose series are shown, with its labels in a renderer's
// arena: arena[start:end] is "{nvswitch=…} ".
type partEntity struct {
	part       *gpu.PartSnapshot
	stale      bool // it is too old: only what has happened to the part is shown
	start, end int
}

// firstDCGMField is DCGM's first field of devices; smaller ids are fields of
// the node.
const firstDCGMField gpu.FieldID = 50

// collectParts lists the parts to show and renders their labels.
func (r *renderer) collectParts() {
	in := &r.in
	in.parts = in.parts[:0]
	for i := range in.snap.Parts {
		p := &in.snap.Parts[i]
		start := len(in.arena)
		stale := in.now.Sub(p.Collected) > gpu.MaxAge(in.snap.Interval)
		if !stale {
			in.totals.notNumbers += uint64(p.Values.Wrong())
		}
		in.arena = r.appendPart(in.arena, p)
		if r.isNew(start, true, true) {
			in.parts = append(in.parts, partEntity{part: p, stale: stale, start: start, end: len(in.arena)})
		}
	}
}

// appendPart renders a part's labels in dcgm-exporter's order: its identity,
// the node, label fields by name.
func (r *renderer) appendPart(b []byte, p *gpu.PartSnapshot) []byte {
	host := r.hostLabel
	switch p.Kind {
	case gpu.NVSwitch:
		b = appendNumber(b, `{nvswitch="nvswitch`, p.ID)
	case gpu.NVLink:
		b = r.appendLink(b, &p.Part)
		host = r.linkHost
	case gpu.CPU:
		b = appendNumber(b, `{cpu="`, p.ID)
		if p.Serial != "" && r.cfg.Profile.HasCPUSerial() {
			b = r.label(b, "cpu_serial", p.Serial)
		}
	case gpu.CPUCore:
		b = appendNumber(b, `{cpucore="`, p.ID)
		b = appendNumber(b, `,cpu="`, p.Parent)
	}
	b = append(b, host...)
	for i := range r.labels {
		l := &r.labels[i]
		if l.number.field >= firstDCGMField {
			b = l.append(b, &p.Values)
		} else if len(r.in.snap.Devices) > 0 {
			b = l.append(b, &r.in.snap.Devices[0].Values)
		}
	}
	return append(b, "} "...)
}

// appendLink renders a link's index and its GPU or switch. dcgm-exporter counts
// the links of a GPU from 1 and those of a switch from 0.
func (r *renderer) appendLink(b []byte, p *gpu.Part) []byte {
	if p.GPU == nil {
		b = appendNumber(b, `{nvlink="`, p.ID)
		return appendNumber(b, `,nvswitch="nvswitch`, p.Parent)
	}
	b = appendNumber(b, `{nvlink="`, p.ID+1)
	b = appendNumber(b, `,gpu="`, p.GPU.Index)
	b = appendLabel(append(b, ','), "gpu_uuid", p.GPU.UUID)
	b = r.label(b, "pci_bus_id", p.GPU.PCIBusID)
	b = r.numbered(b, "device", "nvidia", p.GPU.Index)
	return r.label(b, "model_name", p.GPU.Model)
}

// appendNumber writes a label's head, a number and the closing quote.
func appendNumber(b []byte, head string, n int) []byte {
	return append(strconv.AppendInt(append(b, head...), int64(n), 10), '"')
}

// partTimes writes when the parts that cannot be read were last read.
func partTimes(b []byte, in *renderInput) []byte {
	for i := range in.parts {
		if e := &in.parts[i]; e.stale {
			b = append(append(b, "gpupilot_part_last_success_timestamp_seconds"...), in.arena[e.start:e.end]...)
			b = append(appendTime(b, e.part.Collected), '\n')
		}
	}
	return b
}

// appendParts writes the metric's series of parts.
func (m *metric) appendParts(b []byte, in *renderInput) []byte {
	for i := range in.parts {
		e := &in.parts[i]
		if e.stale && !m.number.lasting {
			continue
		}
		v, ok := m.number.of(&e.part.Values)
		if !ok {
			continue
		}
		if !m.number.sane(v.Float) {
			in.totals.outOfRange++
			continue
		}
		b = append(append(b, m.name...), in.arena[e.start:e.end]...)
		b = append(m.number.append(b, v), '\n')
	}
	return b
}
