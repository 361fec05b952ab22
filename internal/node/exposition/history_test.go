// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// derivedCollectors are all but health.
func derivedCollectors(t *testing.T) Collectors {
	t.Helper()
	c, bad := ParseCollectors("DCGM_EXP_XID_ERRORS_COUNT,gauge,x\nDCGM_EXP_XID_ERRORS_TOTAL,counter,x\n" +
		"DCGM_EXP_CLOCK_EVENTS_COUNT,gauge,x\nDCGM_EXP_CLOCK_EVENTS_TOTAL,counter,x\n")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	return c
}

func TestWindows(t *testing.T) {
	e := New(Config{Collectors: derivedCollectors(t), ClockWindow: 3 * time.Second, XIDWindow: 3 * time.Second})
	start := soon()
	var xids []gpu.XIDCount
	tick := func(at time.Duration, reasons float64, want ...string) {
		t.Helper()
		now := start.Add(at)
		values := map[gpu.FieldID]float64{gpu.ClocksEventReasons: reasons}
		if math.IsNaN(reasons) {
			values = nil
		}
		d := wholeGPU(0, now, values)
		d.XIDs = xids
		e.Update(snapshot(now, d), Stats{}, now)
		_, body := get(t, e, "/metrics")
		var got []string
		for _, l := range samples(body) {
			if rest, ok := strings.CutPrefix(l, "DCGM_EXP_"); ok && !(strings.HasPrefix(rest, "CLOCK_EVENTS_TOTAL") && strings.HasSuffix(l, " 0")) {
				name, labels, _ := strings.Cut(rest, "{")
				_, labels, _ = strings.Cut(labels, `H200"`)
				labels = strings.Replace(labels, `window_size_in_ms="3000"`, "w", 1)
				got = append(got, name+labels)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("at %v (-want +got):\n%s", at, diff)
		}
	}
	tick(0, 0x4, `XID_ERRORS_COUNT,w} 0`, `CLOCK_EVENTS_COUNT,clock_event="power_cap",w} 1`)
	xids = []gpu.XIDCount{{Code: 13, Count: 2, Last: start.Add(900 * time.Millisecond)}}
	tick(time.Second, 0x24, `XID_ERRORS_COUNT,w,xid="13"} 2`, `XID_ERRORS_TOTAL,xid="13"} 2`,
		`CLOCK_EVENTS_COUNT,clock_event="power_cap",w} 2`, `CLOCK_EVENTS_COUNT,clock_event="sw_thermal",w} 1`, `CLOCK_EVENTS_TOTAL,clock_event="sw_thermal"} 1`)
	tick(2*time.Second, 0, `XID_ERRORS_COUNT,w,xid="13"} 2`, `XID_ERRORS_TOTAL,xid="13"} 2`,
		`CLOCK_EVENTS_COUNT,clock_event="power_cap",w} 2`, `CLOCK_EVENTS_COUNT,clock_event="sw_thermal",w} 1`, `CLOCK_EVENTS_TOTAL,clock_event="sw_thermal"} 1`)
	// The first sample and the XIDs have left, a reason began again.
	tick(3950*time.Millisecond, 0x20, `XID_ERRORS_COUNT,w} 0`, `XID_ERRORS_TOTAL,xid="13"} 2`,
		`CLOCK_EVENTS_COUNT,clock_event="power_cap",w} 1`, `CLOCK_EVENTS_COUNT,clock_event="sw_thermal",w} 2`, `CLOCK_EVENTS_TOTAL,clock_event="sw_thermal"} 2`)
	// Nothing held the clocks, and then nobody knows.
	tick(10*time.Second, 0, `XID_ERRORS_COUNT,w} 0`, `XID_ERRORS_TOTAL,xid="13"} 2`, `CLOCK_EVENTS_TOTAL,clock_event="sw_thermal"} 2`)
	tick(14*time.Second, math.NaN(), `XID_ERRORS_COUNT,w} 0`, `XID_ERRORS_TOTAL,xid="13"} 2`,
		`CLOCK_EVENTS_COUNT,w} 0`, `CLOCK_EVENTS_TOTAL,clock_event="sw_thermal"} 2`)
}

// A window of any length is counted right, however often its memory is reused.
func TestClockSamples(t *testing.T) {
	var c clockPast
	at := time.UnixMilli(1_700_000_000_000)
	for i := range 20_000 {
		c.add(at, uint16(i)&0x1)
		c.expire(at.Add(-99 * time.Second))
		at = at.Add(time.Second)
	}
	if c.held[0] != 50 || len(c.samples)-c.first != 100 || cap(c.samples) > 600 {
		t.Errorf("held %d of %d samples in %d", c.held[0], len(c.samples)-c.first, cap(c.samples))
	}
}

func TestDerivedCountersAllocateNothing(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.ClocksEventReasons: 5, gpu.GPUTemp: 40})
	d.XIDs = []gpu.XIDCount{{Code: 13, Count: 2, Last: now}}
	c := derivedCollectors(t)
	c.Metrics = append(c.Metrics, Collector{Name: "DCGM_EXP_GPU_HEALTH_STATUS", Exp: HealthState, Type: Gauge, Help: "x"})
	e := New(Config{Collectors: c, ClockWindow: 5 * time.Second})
	s := snapshot(now, d)
	update := func() {
		now = now.Add(time.Second)
		s.Devices[0].Collected = now
		e.Update(s, Stats{}, now)
	}
	for range 50 {
		update()
	}
	if n := testing.AllocsPerRun(200, update); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A change of the collectors loses no count, and the old page stays as it was.
func TestReconfigure(t *testing.T) {
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 5, gpu.FBUsed: 7, gpu.ClocksEventReasons: 4})
	d.XIDs = []gpu.XIDCount{{Code: 13, Count: 2, Last: now}}
	c := derivedCollectors(t)
	e := New(Config{Collectors: c})
	e.Update(snapshot(now, d), Stats{}, now)
	more, _ := ParseCollectors("DCGM_FI_DEV_GPU_UTIL,gauge,x")
	_, before := get(t, e, "/metrics")
	e.Reconfigure(Collectors{Metrics: append(more.Metrics, c.Metrics...)}, 3)
	e.ReloadFailed()
	if _, body := get(t, e, "/metrics?name[]=DCGM_EXP_XID_ERRORS_COUNT"); !strings.Contains(body, "DCGM_EXP_XID_ERRORS_COUNT{") {
		t.Errorf("between two collections:\n%s", body)
	}
	if _, after := get(t, e, "/metrics"); after != before {
		t.Error("the page changed before a collection")
	}
	if f := e.Fields(); !f.HasID(gpu.GPUUtil) || !f.HasID(gpu.ClocksEventReasons) {
		t.Error("the new fields are not asked for")
	}
	e.Update(snapshot(now, d), Stats{}, now)
	_, body := get(t, e, "/metrics")
	for _, want := range []string{
		"DCGM_FI_DEV_GPU_UTIL{", `xid="13"} 2`, `clock_event="power_cap",window_size_in_ms="300000"} 1`,
		`gpupilot_config_reloads_total{result="success"} 1`, `gpupilot_config_reloads_total{result="failure"} 1`, "gpupilot_collectors_invalid_lines 3\n",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

func TestTheProcessItself(t *testing.T) {
	e := New(Config{Further: true})
	now := soon()
	e.Update(snapshot(now), Stats{}, now)
	_, body := get(t, e, "/metrics")
	fams := parse(t, body)
	for _, name := range []string{
		"go_goroutines", "go_memstats_alloc_bytes", "go_memstats_sys_bytes", "process_cpu_seconds_total", "process_resident_memory_bytes",
		"process_open_fds", "process_max_fds", "process_start_time_seconds",
	} {
		m := fams[name].GetMetric()
		if len(m) != 1 || m[0].GetGauge().GetValue()+m[0].GetCounter().GetValue() <= 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
}

func TestOpenFiles(t *testing.T) {
	const some = 7
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skipf("this machine has no /proc: %v", err)
	}
	before, ok := openFiles()
	// ReadDir's own descriptor is listed, and the runtime may open one at any time.
	if want := float64(len(list) - 1); !ok || math.Abs(before-want) > 3 {
		t.Errorf("%v open files, want %v", before, want)
	}
	for range some {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
	}
	if after, _ := openFiles(); math.Abs(after-before-some) > 3 {
		t.Errorf("%v open files after %d more were opened, %v before", after, some, before)
	}
}

func TestHealth(t *testing.T) {
	now := soon()
	f := func(values map[gpu.FieldID]float64, xids []gpu.XIDCount, watch gpu.HealthWatch, health uint8, code string, all ...string) {
		t.Helper()
		d := wholeGPU(0, now, values)
		d.XIDs = xids
		verdicts, judged := d.Health(now, 5*time.Second)
		if judged {
			t.Error("our verdicts are said to be the library's")
		}
		for i, v := range verdicts {
			var want gpu.Verdict
			switch w := gpu.HealthWatch(i); {
			case w == watch && health > 0:
				want = gpu.Verdict{Health: health, Code: code}
			case w == gpu.WatchAll && len(all) > 0:
				want = gpu.Verdict{Health: gpu.HealthFail, Code: all[0]}
			}
			if v != want {
				t.Errorf("%v %v: %s is %+v, want %+v", values, xids, gpu.HealthWatch(i), v, want)
			}
		}
	}
	f(nil, nil, 0, 0, "")
	f(nil, []gpu.XIDCount{{Code: 13, Count: 9, Last: now}}, 0, 0, "")
	f(nil, []gpu.XIDCount{{Code: 79, Count: 1, Last: now}}, gpu.WatchPCIe, gpu.HealthFail, "DCGM_FR_XID_ERROR", "DCGM_FR_FALLEN_OFF_BUS")
	f(nil, []gpu.XIDCount{{Code: 79, Count: 1, Last: now.Add(-2 * time.Hour)}}, 0, 0, "")
	f(nil, []gpu.XIDCount{{Code: 63, Count: 1, Last: now}, {Code: 95, Count: 1, Last: now}}, gpu.WatchMem, gpu.HealthFail, "DCGM_FR_UNCONTAINED_ERROR", "DCGM_FR_UNCONTAINED_ERROR")
	f(map[gpu.FieldID]float64{gpu.RowRemapPending: 1}, nil, gpu.WatchMem, gpu.HealthWarn, "DCGM_FR_PENDING_ROW_REMAP")
	f(map[gpu.FieldID]float64{gpu.RowRemapPending: 1, gpu.RowRemapFailure: 1}, nil, gpu.WatchMem, gpu.HealthFail, "DCGM_FR_ROW_REMAP_FAILURE")
	f(map[gpu.FieldID]float64{gpu.GPUTemp: 95, gpu.SlowdownTemp: 92}, nil, gpu.WatchThermal, gpu.HealthWarn, "DCGM_FR_CLOCK_THROTTLE_THERMAL")
	f(map[gpu.FieldID]float64{gpu.ClocksEventReasons: 0x80}, nil, gpu.WatchPower, gpu.HealthWarn, "DCGM_FR_CLOCK_THROTTLE_POWER")
	f(map[gpu.FieldID]float64{gpu.ClocksEventReasons: 0x5}, nil, 0, 0, "")
}

// ALL is a system of its own; the library's verdicts go before ours, and then SM
// and INFOROM are there, too.
func TestHealthSeries(t *testing.T) {
	now := soon()
	f := func(verdicts *gpu.Verdicts, want ...string) {
		t.Helper()
		d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.RowRemapFailure: 1})
		d.XIDs = []gpu.XIDCount{{Code: 79, Count: 1, Last: now}}
		d.Verdicts = verdicts
		c, bad := ParseCollectors("DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health.\n")
		if bad != nil {
			t.Fatal(bad)
		}
		e := New(Config{Collectors: c})
		if !e.WantsHealth() || New(Config{Collectors: DefaultCollectors(names.Profile48)}).WantsHealth() {
			t.Error("who wants verdicts is not known")
		}
		e.Update(snapshot(now, d), Stats{}, now)
		_, body := get(t, e, "/metrics")
		var got []string
		for l := range strings.SplitSeq(series(body, "DCGM_EXP_GPU_HEALTH_STATUS{"), "\n") {
			_, labels, _ := strings.Cut(l, `,health_error_code="`)
			got = append(got, labels)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(nil, `DCGM_FR_XID_ERROR",health_watch="PCIE"} 20`, `DCGM_FR_OK",health_watch="NVLINK"} 0`, `DCGM_FR_OK",health_watch="PMU"} 0`,
		`DCGM_FR_OK",health_watch="MCU"} 0`, `DCGM_FR_ROW_REMAP_FAILURE",health_watch="MEM"} 20`, `DCGM_FR_OK",health_watch="THERMAL"} 0`,
		`DCGM_FR_OK",health_watch="POWER"} 0`, `DCGM_FR_OK",health_watch="DRIVER"} 0`, `DCGM_FR_FALLEN_OFF_BUS",health_watch="ALL"} 20`)
	f(&gpu.Verdicts{gpu.WatchInforom: {Health: gpu.HealthWarn, Code: "DCGM_FR_CORRUPT_INFOROM"}},
		`DCGM_FR_OK",health_watch="PCIE"} 0`, `DCGM_FR_OK",health_watch="NVLINK"} 0`, `DCGM_FR_OK",health_watch="PMU"} 0`,
		`DCGM_FR_OK",health_watch="MCU"} 0`, `DCGM_FR_OK",health_watch="MEM"} 0`, `DCGM_FR_OK",health_watch="SM"} 0`, `DCGM_FR_CORRUPT_INFOROM",health_watch="INFOROM"} 10`,
		`DCGM_FR_OK",health_watch="THERMAL"} 0`, `DCGM_FR_OK",health_watch="POWER"} 0`, `DCGM_FR_OK",health_watch="DRIVER"} 0`, `DCGM_FR_OK",health_watch="ALL"} 0`)
}
