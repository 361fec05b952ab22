// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Each counter has a series at 0 before its first event, which has the same labels after
// it: increase() sees the first event too.
func TestCountersBeginAtZero(t *testing.T) {
	now := soon()
	c := derivedCollectors(t)
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.XIDErrors: 0, gpu.ClocksEventReasons: 0})
	d.Links = gpu.Links{Active: 2, Errors: []gpu.LinkError{{Link: 0, Type: "replay"}, {Link: 1, Type: "replay"}}}
	read := func(name string) (out []string) {
		for _, l := range seriesOf(t, snapshot(now, d), Config{Collectors: c}, name) {
			out = append(out, l[strings.LastIndex(l, ",")+1:])
		}
		return out
	}
	before := map[string][]string{}
	for name, after := range map[string]string{
		"DCGM_EXP_XID_ERRORS_TOTAL": `xid="79"} 1`, "gpupilot_gpu_xid_errors_total": `gpupilot_gpu_xid_errors_total{uuid="GPU-00000000-aaaa"} 1`,
		"gpupilot_gpu_nvlink_errors_total": `gpupilot_gpu_nvlink_errors_total{uuid="GPU-00000000-aaaa"} 3`,
		"gpupilot_nvlinks_down":            `gpupilot_nvlinks_down{uuid="GPU-00000000-aaaa"} 1`,
	} {
		d.XIDs, d.Links.Errors[0].Count, d.Links.Down = nil, 0, nil
		before[name] = read(name)
		d.XIDs, d.Links.Errors[0].Count, d.Links.Down = []gpu.XIDCount{{Code: 79, Count: 1, Last: now}}, 3, []int{1}
		got := read(name)
		if zero := after[:strings.LastIndex(after, " ")] + " 0"; !slices.Contains(before[name], zero) || !slices.Contains(got, after) || len(got) != len(before[name]) {
			t.Errorf("%s: %q, then %q; want %s in between", name, before[name], got, after)
		}
	}
	// A code that the list does not have comes in order, with the others.
	d.XIDs = []gpu.XIDCount{{Code: 8, Count: 1, Last: now}, {Code: 999, Count: 4, Last: now}}
	got := read("DCGM_EXP_XID_ERRORS_TOTAL")
	if n := len(gpu.FollowedXIDs()); len(got) != n+2 || got[0] != `xid="8"} 1` || got[n+1] != `xid="999"} 4` {
		t.Errorf("with other codes: %q", got)
	}
	// Where nobody sees errors, there is no 0 either.
	d.XIDs, d.Values = nil, gpu.Values{}
	for _, name := range []string{"DCGM_EXP_XID_ERRORS_TOTAL", "gpupilot_gpu_xid_errors_total", "DCGM_EXP_CLOCK_EVENTS_TOTAL"} {
		if got := read(name); got != nil {
			t.Errorf("%s of a GPU without events: %q", name, got)
		}
	}
}

// The reasons of the clocks begin with the first reading.
func TestClockEventsBeginAtZero(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.ClocksEventReasons: 0x1})
	got := seriesOf(t, snapshot(now, d), Config{Collectors: derivedCollectors(t)}, "DCGM_EXP_CLOCK_EVENTS_TOTAL")
	if len(got) != len(clockEvents) || !strings.HasSuffix(got[6], `clock_event="hw_thermal"} 0`) {
		t.Errorf("%q", got)
	}
}

// The sum of a GPU has the errors of its instances once.
func TestXIDTotalOfAGPU(t *testing.T) {
	now := soon()
	instance := func(uuid string, gi int, own uint64) gpu.DeviceSnapshot {
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.XIDErrors: 0})
		d.UUID, d.MIG = uuid, &gpu.MIG{ParentUUID: "GPU-0", GPUInstance: gi}
		d.XIDs, d.GPUXIDs = []gpu.XIDCount{{Code: 31, Count: own, Last: now}}, []gpu.XIDCount{{Code: 79, Count: 1, Last: now}}
		return d
	}
	a, b := instance("MIG-1", 1, 2), instance("MIG-2", 2, 4)
	const sum = `gpupilot_gpu_xid_errors_total{uuid="GPU-0"} 7`
	if diff := cmp.Diff([]string{sum}, seriesOf(t, snapshot(now, a, b), Config{}, "gpupilot_gpu_xid_errors_total")); diff != "" {
		t.Error(diff)
	}
	whole := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.XIDErrors: 0})
	whole.UUID, whole.XIDs = "GPU-0", a.GPUXIDs
	if diff := cmp.Diff([]string{sum}, seriesOf(t, snapshot(now, whole, a, b), Config{}, "gpupilot_gpu_xid_errors_total")); diff != "" {
		t.Error(diff)
	}
}
