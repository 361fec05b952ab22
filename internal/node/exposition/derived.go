// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Derived is a metric that is computed from several collections:
// dcgm-exporter's own counters.
type Derived uint8

// The derived metrics, with the names that they have in every profile.
const (
	NotDerived  Derived = iota
	ClockCount          // DCGM_EXP_CLOCK_EVENTS_COUNT: collections in the window in which a reason held the clocks down
	ClockTotal          // DCGM_EXP_CLOCK_EVENTS_TOTAL: how often a reason began to
	XIDCount            // DCGM_EXP_XID_ERRORS_COUNT: XID errors in the window
	XIDTotal            // DCGM_EXP_XID_ERRORS_TOTAL: XID errors since the start
	HealthState         // DCGM_EXP_GPU_HEALTH_STATUS: 0 pass, 10 warning, 20 failure
	PeerState           // DCGM_EXP_P2P_STATUS: how a GPU reaches another one over NVLink, 0 to 6
)

// derivedNames is ordered as the constants.
var derivedNames = [...]string{
	"", "DCGM_EXP_CLOCK_EVENTS_COUNT", "DCGM_EXP_CLOCK_EVENTS_TOTAL", "DCGM_EXP_XID_ERRORS_COUNT",
	"DCGM_EXP_XID_ERRORS_TOTAL", "DCGM_EXP_GPU_HEALTH_STATUS", "DCGM_EXP_P2P_STATUS",
}

// parseDerived finds a derived metric by its name. reason is why a metric of
// dcgm-exporter is not supported.
func parseDerived(name string) (d Derived, reason string) {
	if name == "DCGM_FI_EXP_CLOCK_THROTTLE_REASONS_COUNT" { // in dcgm-exporter 3.4
		return ClockCount, ""
	}
	if !strings.HasPrefix(name, "DCGM_EXP_") {
		return NotDerived, ""
	}
	for i, n := range derivedNames {
		if n == name {
			return Derived(i), ""
		}
	}
	return NotDerived, fmt.Sprintf("unknown exporter counter %q", name)
}

func (c *Collectors) addDerived(name string, d Derived, typ Type, help string) (reason string) {
	switch typ {
	case Gauge, Counter, Histogram, Summary:
		c.Metrics = append(c.Metrics, Collector{Name: name, Exp: d, Type: typ, Help: help})
		return ""
	}
	return fmt.Sprintf("%s can be gauge, counter, histogram or summary, not %q", name, typ)
}

// fields returns the fields that the metric is computed from. XIDs are counted
// without a field; XID_ERRORS says whether anybody sees them.
func (d Derived) fields() gpu.FieldSet {
	switch d {
	case ClockCount, ClockTotal:
		return gpu.SetOf(gpu.ClocksEventReasons)
	case XIDTotal:
		return gpu.SetOf(gpu.XIDErrors)
	case HealthState:
		return gpu.SetOf(gpu.ClocksEventReasons, gpu.RowRemapFailure, gpu.RowRemapPending, gpu.RetiredPending,
			gpu.ECCDBEVolatile, gpu.GPUTemp, gpu.SlowdownTemp)
	}
	return gpu.FieldSet{}
}

// append writes the metric's series of one GPU.
func (m *metric) appendDerived(b []byte, in *renderInput, e *entity) []byte {
	h := in.history.of(e.dev.UUID)
	if h == nil {
		return b
	}
	switch m.derived {
	case ClockCount:
		for i := range clockEvents {
			if h.clocks.held[i] > 0 {
				b = append(m.head(b, in, e), `,clock_event="`...)
				b = append(append(b, clockEvents[i].name...), '"')
				b = m.tail(append(b, in.windows.clock...), in, e, uint64(h.clocks.held[i]))
			}
		}
		// A GPU whose clocks were not held down has no series, as in
		// dcgm-exporter. 0 is a window without a reading.
		if h.clocks.empty() && !e.stale {
			b = m.tail(append(m.head(b, in, e), in.windows.clock...), in, e, 0)
		}
	case ClockTotal:
		if !h.clocks.primed {
			return b
		}
		for i := range clockEvents { // from 0 on, so that the first one can be compared with before
			b = append(m.head(b, in, e), `,clock_event="`...)
			b = append(append(b, clockEvents[i].name...), '"')
			b = m.tail(b, in, e, h.clocks.began[i])
		}
	case XIDCount:
		n := len(b)
		for i := range h.xids.codes {
			if c := &h.xids.codes[i]; c.recent > 0 {
				b = append(m.head(b, in, e), in.windows.xid...)
				b = m.tail(appendXIDLabel(b, c.code), in, e, c.recent)
			}
		}
		if len(b) == n {
			b = m.tail(append(m.head(b, in, e), in.windows.xid...), in, e, 0)
		}
	case XIDTotal:
		b = m.appendXIDTotals(b, in, e, h.counts)
	case HealthState:
		b = m.appendHealth(b, in, e)
	case PeerState:
		if e.stale {
			return b
		}
		for _, p := range e.dev.Links.Peers {
			b = append(append(m.head(b, in, e), `,link_status="`...), p2pText(p.Status)...)
			b = appendNumber(b, `",peer_gpu="`, p.Index)
			b = m.tail(b, in, e, uint64(p.Status))
		}
	}
	return b
}

// appendXIDTotals writes the counts by code, with those at 0 of the followed codes.
func (m *metric) appendXIDTotals(b []byte, in *renderInput, e *entity, counts []gpu.XIDCount) []byte {
	var followed []uint64
	if e.dev.Values.Has(gpu.XIDErrors) { // else nobody sees its errors
		followed = gpu.FollowedXIDs()
	}
	for len(counts)+len(followed) > 0 {
		var x gpu.XIDCount
		switch {
		case len(counts) == 0 || len(followed) > 0 && followed[0] < counts[0].Code:
			x.Code, followed = followed[0], followed[1:]
		default:
			x, counts = counts[0], counts[1:]
			if len(followed) > 0 && followed[0] == x.Code {
				followed = followed[1:]
			}
		}
		b = m.tail(appendXIDLabel(m.head(b, in, e), x.Code), in, e, x.Count)
	}
	return b
}

// p2pText returns dcgm-exporter's name of a status.
func p2pText(s gpu.P2PStatus) string {
	if s < gpu.P2POK || s > gpu.P2PUnknown {
		s = gpu.P2PUnknown
	}
	return [...]string{
		"OK", "ChipsetNotSupported", "GPUNotSupported", "TopologyNotSupported", "DisabledByRegKey", "NotSupported", "Unknown",
	}[s]
}

// head writes the metric's name and the labels up to the label fields. tail
// writes the other labels and the value.
func (m *metric) head(b []byte, in *renderInput, e *entity) []byte {
	return append(append(b, m.name...), in.arena[e.start:e.attrs]...)
}

func (m *metric) tail(b []byte, in *renderInput, e *entity, v uint64) []byte {
	b = append(b, in.arena[e.attrs:e.end]...)
	return append(appendUint(b, v), '\n')
}
