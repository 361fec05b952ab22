// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// passedOf lists the fields outside of the table that a read gives, sorted as in ids.
func passedOf(t *testing.T, r *Reader, uuid string, ids []gpu.FieldID) string {
	t.Helper()
	var v gpu.Values
	if err := r.Read(uuid, gpu.FieldSet{}, &v); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, id := range ids {
		if n, ok := v.Passed(id); ok {
			out = append(out, fmt.Sprintf("%d=%v", id, n.Float))
		}
	}
	return strings.Join(out, " ")
}

// The fields outside of the table that NVML has are read as DCGM reads them: the sum
// over the links from NVLink 5 on, throttle times under the driver's numbers. An
// instance has its GPU's values. What the GPU does not give is absent, and comes
// when it gives it.
func TestPassed(t *testing.T) {
	f := newFake(t)
	if f.old {
		t.Skip("the library of 2018 has no field values")
	}
	f.Put("gpus", "gpus 2")
	f.Put("mig", "gpu 0 mig 1g.18gb 1")
	for i, line := range []string{
		"32 5", "37 6", "38 999", "96 7", "39 8", "160 9", // links, before NVLink 5
		"201 100 all", "202 9007199254740993 all", "203 300 all", "204 400 all", "201 1 3", "204 0",
		"206 11 all", "215 12 all", "221 13 all", "219 14 all", "222 0x50f all", "220 4095 all", "235 15 all", "250 16 all",
		"231 17", "234 1", "173 18", "230 4",
		"251 1", "252 2", "253 0", "269 1001", "270 1002", "271 1003",
	} {
		f.Put(fmt.Sprint("field", i), "gpu 0 field "+line)
	}
	f.Put("power", "gpu 0 viol_power 1000")
	f.Put("boost", "gpu 0 viol_sync_boost 2000")
	f.Put("replay", "gpu 0 nvlink_replay 21")
	r, devices := reader(t, f)
	ids := []gpu.FieldID{
		400, 405, 406, 410, 426, 451, 483, 572, 1200, 1201, 1202, 1203, 1204, 1213, 1214, 1215, 1216, 1217, 1218, 1219, 1220,
		1400, 1403, 1404, 1419, 1420, 1421, 1422, 1423, 1424, 1501, 1502, 1523,
	}
	if diff := cmp.Diff([]gpu.FieldID{572, 1502}, r.Pass(ids)); diff != "" {
		t.Errorf("NVML does not have (-want +got):\n%s", diff)
	}
	const all = "400=5 405=6 406=0 410=8 426=0 451=7 483=0 1200=100 1201=9.007199254740992e+15 1202=300 1203=400 1204=11 1213=12 1214=13 " +
		"1215=1295 1216=5e-15 1217=4095 1218=1.5e-254 1219=14 1220=9 1400=17 1403=1 1404=15 1419=16 1420=1000 1421=2000 " +
		"1422=1001 1423=1002 1424=1003 1501=18 1523=4"
	for _, d := range devices[:2] { // the GPU and its instance
		if got := passedOf(t, r, d.UUID, ids); got != all {
			t.Errorf("%s gives\n%s, want\n%s", d.UUID, got, all)
		}
	}
	var v gpu.Values
	if err := r.Read(devices[0].UUID, gpu.SetOf(gpu.GPUUtil), &v); err != nil {
		t.Fatal(err)
	}
	if n, _ := v.Passed(1201); n != gpu.Whole(9007199254740993) {
		t.Errorf("a counter above 2^53 is %+v", n)
	}
	f.Put("no replay", "gpu 1 unsupported nvlink_replay")
	if got := passedOf(t, r, devices[2].UUID, ids); got != "406=0 483=0 1420=0 1421=0" {
		t.Errorf("a GPU without NVLink 5 gives %s", got)
	}
	r.Pass([]gpu.FieldID{1523})
	if got := passedOf(t, r, devices[0].UUID, ids); got != "1523=4" {
		t.Errorf("after a change it gives %s", got)
	}
	f.Put("lost", "gpu 0 lost")
	if err := r.Read(devices[0].UUID, gpu.FieldSet{}, &v); err == nil {
		t.Error("a lost GPU is read")
	}
	f.Put("lost", "")
	r.Pass(nil)
	if got := passedOf(t, r, devices[0].UUID, ids); got != "" {
		t.Errorf("without fields to pass it gives %s", got)
	}
}

// A driver until 580.65 has the throttle times under other numbers, under which later
// ones have power smoothing. Of a version between the two, they are not read.
func TestThrottleTimesOfADriver(t *testing.T) {
	f := func(driver string, shift uint32, ok bool) {
		t.Helper()
		if got, known := throttleShift(driver); got != shift || known != ok {
			t.Errorf("%q: %d, %v, want %d, %v", driver, got, known, shift, ok)
		}
	}
	f("570.124.06", 18, true)
	f("575.57.08", 18, true)
	f("580.65.06", 18, true)
	f("580.76.05", 0, false)
	f("580.82.07", 0, true)
	f("580.105", 0, true)
	f("590.48.01", 0, true)
	f("", 0, false)
	f("580", 0, false)
	f("r590.48", 0, false)

	fake := newFake(t)
	if fake.old {
		return
	}
	for i, line := range []string{"251 11", "252 12", "253 13", "269 1", "270 50", "271 7"} {
		fake.Put(fmt.Sprint("field", i), "gpu 0 field "+line)
	}
	for driver, want := range map[string]string{"570.124.06": "1422=11 1423=12 1424=13", "580.76.05": ""} {
		t.Run(driver, func(t *testing.T) { // which closes the reader: go-nvml's functions are variables, which the next one sets
			fake.Put("driver-version", "driver-version "+driver)
			r, devices := reader(t, fake)
			ids := []gpu.FieldID{1422, 1423, 1424}
			r.Pass(ids)
			if got := passedOf(t, r, devices[0].UUID, ids); got != want {
				t.Errorf("driver %s gives %q, want %q", driver, got, want)
			}
		})
	}
}

// Every number of a field finds the link or field value that DCGM reads.
func TestSourceOf(t *testing.T) {
	f := func(id gpu.FieldID, want string) {
		t.Helper()
		s, ok := sourceOf(id)
		got := fmt.Sprintf("field %d", s.field)
		if s.field == 0 {
			got = fmt.Sprintf("counter %d of link %d", s.counter, s.scope)
		}
		if !ok {
			got = ""
		}
		if got != want {
			t.Errorf("%d is %q, want %q", id, got, want)
		}
	}
	f(408, "counter 2 of link 14")
	f(481, "counter 2 of link 15")
	f(486, "counter 3 of link 17")
	f(426, "counter 0 of link 12")
	f(493, "counter 1 of link 17")
	f(474, "field 119")
	f(409, "") // in the table
	f(490, "")
	f(1210, "field 212")
	f(1425, "")
	last := gpu.FieldID(0)
	for _, e := range equivalents {
		if e.first <= last || e.last < e.first {
			t.Errorf("%d to %d is not in order", e.first, e.last)
		}
		last = e.last
		for id := e.first; id <= e.last; id++ {
			if _, inTable := gpu.IndexOf(id); inTable {
				t.Errorf("%d is in the table", id)
			}
		}
	}
}
