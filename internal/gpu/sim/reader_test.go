// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// clock is a time that a test moves.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// driven makes a reader of n GPUs with a state file that the returned function writes.
func driven(t *testing.T, n int) (*Reader, *clock, func(string)) {
	t.Helper()
	c := &clock{t0}
	path := filepath.Join(t.TempDir(), "state.json")
	r, err := New(Config{GPUs: n, Node: "node-a", StateFile: path, Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	return r, c, func(s string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, r *Reader, i int) gpu.Values {
	t.Helper()
	var v gpu.Values
	if err := r.Read(UUID("node-a", i), gpu.AllFields(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestUUIDIsStableAndInShape(t *testing.T) {
	shape := regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for _, node := range []string{"", "a", "b"} {
		for i := range 8 {
			u := UUID(node, i)
			if !shape.MatchString(u) || seen[u] || u != UUID(node, i) {
				t.Errorf("UUID(%q, %d) = %s", node, i, u)
			}
			seen[u] = true
		}
	}
}

func TestStateDrivesTheGPUs(t *testing.T) {
	r, c, write := driven(t, 4)
	f := func(i int, id gpu.FieldID, want float64) {
		t.Helper()
		v := read(t, r, i)
		if got, ok := v.Get(id); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("GPU %d: %v = %v, %v; want %v", i, id, got, ok, want)
		}
	}
	absent := func(i int, id gpu.FieldID) {
		t.Helper()
		v := read(t, r, i)
		if v.Has(id) {
			t.Errorf("GPU %d has %v", i, id)
		}
	}
	write(`{"gpus":[
		{"utilization":57.2,"memoryUsedMiB":81920},
		{},
		{"utilization":12,"memoryUsedMiB":9e9,"xids":[{"code":13,"count":2},{"code":79,"count":1}],
		 "fields":{"DCGM_FI_DEV_GPU_TEMP":91,"DCGM_FI_DEV_POWER_USAGE":null}}]}`)
	f(0, gpu.GPUUtil, 57)
	f(0, gpu.GREngineActive, 0.572)
	f(0, gpu.FBUsed, 81920)
	f(0, gpu.FBFree, 143771-614-81920)
	f(0, gpu.SMClock, 1980)
	absent(1, gpu.GPUUtil)
	absent(1, gpu.SMActive)
	absent(1, gpu.FBUsed)
	f(1, gpu.PowerUsage, 77.7)
	f(2, gpu.FBFree, 0)
	f(2, gpu.GPUTemp, 91)
	f(2, gpu.XIDErrors, 79)
	absent(2, gpu.PowerUsage)
	f(3, gpu.GPUUtil, 0) // beyond the list: there and idle
	f(3, gpu.PowerUsage, 77.7)
	f(3, gpu.SMClock, 345)
	f(3, gpu.ClocksEventReasons, 1)

	want := []gpu.XIDCount{{Code: 13, Count: 2, Last: t0}, {Code: 79, Count: 1, Last: t0.Add(1)}} // the last one of the file is the newest
	if d := cmp.Diff(want, r.XIDs(UUID("node-a", 2))); d != "" {
		t.Error("XIDs:", d)
	}
	c.now = t0.Add(time.Minute)
	write(`{"gpus":[{"utilization":100,"memoryUsedMiB":0},{},{"xids":[{"code":13,"count":2},{"code":79,"count":2}]}]}`)
	f(0, gpu.GPUUtil, 100)
	f(0, gpu.PowerUsage, 627)
	f(0, gpu.GPUTemp, 52)
	f(2, gpu.XIDErrors, 79)
	want[1].Count, want[1].Last = 2, c.now.Add(1)
	if d := cmp.Diff(want, r.XIDs(UUID("node-a", 2))); d != "" {
		t.Error("XIDs:", d)
	}
}

func TestOnlyWhatIsWantedIsRead(t *testing.T) {
	r, _, write := driven(t, 1)
	write(`{"gpus":[{"utilization":50,"memoryUsedMiB":0}]}`)
	var v gpu.Values
	want := gpu.SetOf(gpu.GPUUtil, gpu.PowerUsage, gpu.FanSpeed)
	if err := r.Read(UUID("node-a", 0), want, &v); err != nil {
		t.Fatal(err)
	}
	if got := v.Fields(); got != gpu.SetOf(gpu.GPUUtil, gpu.PowerUsage) { // the card has no fan
		t.Errorf("fields %v", got)
	}
	if _, ok := v.GetLabel(gpu.DriverVersion); ok {
		t.Error("a label that nobody asked for")
	}
}

func TestEnergyIsThePowerOverTime(t *testing.T) {
	r, c, write := driven(t, 1)
	write(`{"gpus":[{"utilization":0,"memoryUsedMiB":0}]}`)
	v := read(t, r, 0)
	before, _ := v.Get(gpu.TotalEnergy)
	for range 100 {
		c.now = c.now.Add(100 * time.Millisecond)
		v = read(t, r, 0)
	}
	after, _ := v.Get(gpu.TotalEnergy)
	if got := after - before; math.Abs(got-777e3) > 200 { // 77.7 W for 10 s
		t.Errorf("energy rose by %v mJ", got)
	}
	c.now = t0 // a clock that was set back: no energy, and no less of it
	v = read(t, r, 0)
	if e, _ := v.Get(gpu.TotalEnergy); e != after {
		t.Errorf("energy %v, was %v", e, after)
	}
}

func TestLostAndUnknown(t *testing.T) {
	r, _, write := driven(t, 2)
	write(`{"gpus":[{"lost":true},{"utilization":1}]}`)
	devices, err := r.Devices()
	if len(devices) != 1 || devices[0].Index != 1 || !errors.Is(err, gpu.ErrLost) {
		t.Errorf("Devices() = %v, %v", devices, err)
	}
	var v gpu.Values
	if err := r.Read(UUID("node-a", 0), gpu.AllFields(), &v); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("a lost GPU reads: %v", err)
	}
	if err := r.Read("GPU-none", gpu.AllFields(), &v); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("an unknown GPU reads: %v", err)
	}
	write(`{"gpus":[]}`)
	if devices, err := r.Devices(); len(devices) != 2 || err != nil {
		t.Errorf("after the reset Devices() = %v, %v", devices, err)
	}
}

func TestStateFileComesBreaksAndHeals(t *testing.T) {
	r, _, write := driven(t, 1)
	if d, err := r.Devices(); d != nil || !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("without the file Devices() = %v, %v", d, err)
	}
	write(`{"gpus":[{"utilization":30}]}`)
	if d, err := r.Devices(); len(d) != 1 || err != nil {
		t.Errorf("with the file Devices() = %v, %v", d, err)
	}
	write(`{"gpus":[{"utilisation":40}]}`)
	if d, err := r.Devices(); len(d) != 1 || err == nil {
		t.Errorf("with a broken file Devices() = %v, %v", d, err)
	}
	v := read(t, r, 0)
	if u, _ := v.Get(gpu.GPUUtil); u != 30 {
		t.Errorf("with a broken file utilisation is %v, want the last good 30", u)
	}
	write(`{"gpus":[{"utilization":40}]}`)
	v = read(t, r, 0)
	if u, _ := v.Get(gpu.GPUUtil); u != 40 {
		t.Errorf("healed, utilisation is %v", u)
	}
}

func TestOwnLoadLivesAndIsPlausible(t *testing.T) {
	c := &clock{t0}
	r, err := New(Config{Now: c.Now})
	if err != nil {
		t.Fatal(err)
	}
	devices, err := r.Devices()
	if len(devices) != 8 || err != nil {
		t.Fatalf("Devices() = %v, %v", devices, err)
	}
	for _, d := range devices {
		low, high := 100.0, 0.0
		for range 600 {
			c.now = c.now.Add(time.Second)
			var v gpu.Values
			if err := r.Read(d.UUID, gpu.AllFields(), &v); err != nil {
				t.Fatal(err)
			}
			u, _ := v.Get(gpu.GPUUtil)
			w, _ := v.Get(gpu.PowerUsage)
			if u < 0 || u > 100 || w < 77 || w > 700 {
				t.Fatalf("GPU %d: %v %% at %v W", d.Index, u, w)
			}
			low, high = min(low, u), max(high, u)
		}
		if high-low < 30 {
			t.Errorf("GPU %d: utilisation stays within %v to %v", d.Index, low, high)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, n := range []int{-1, MaxGPUs + 1} {
		if _, err := New(Config{GPUs: n}); err == nil {
			t.Errorf("%d GPUs are taken", n)
		}
	}
}

func TestWriteStateRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.json")
	in := State{GPUs: []GPUState{
		Busy(12.5, 100),
		{Lost: true},
		{XIDs: []XID{{Code: 79, Count: 1}}},
		{Processes: []Process{}},
		{Processes: []Process{{PID: 7, Type: "mps"}}},
	}}
	if err := WriteState(path, in); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out, err := ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(in, out); d != "" {
		t.Error(d)
	}
	if err := WriteState(filepath.Join(path, "no", "dir"), in); err == nil {
		t.Error("a state was written below a file")
	}
}

func TestParseStateRefusesProcesses(t *testing.T) {
	for _, p := range []string{`{}`, `{"pid":-1}`, `{"pid":1,"type":"x"}`, `{"pid":1,"memoryMiB":-1}`, `{"pid":1,"utilization":101}`, `{"pid":1,"name":"x"}`} {
		if _, err := ParseState([]byte(`{"gpus":[{"processes":[` + p + `]}]}`)); err == nil {
			t.Errorf("%s is taken", p)
		}
	}
}

// Whose the made-up load is nobody says: that is not the same as nobody's.
func TestNoProcesses(t *testing.T) {
	r, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := r.Processes(UUID("", 0)); err == nil || got.List != nil {
		t.Errorf("Processes: %+v, %v", got, err)
	}
}

func FuzzParseState(f *testing.F) {
	for _, s := range []string{
		`{"gpus":[{"utilization":57.2,"memoryUsedMiB":1,"xids":[{"code":79,"count":1}]}]}`,
		`{"gpus":[{"fields":{"DCGM_FI_DEV_GPU_TEMP":null}}]}`, `{"gpus":[{"utilization":101}]}`, `{}`, `[`,
		`{"gpus":[{"processes":[{"pid":7,"type":"compute+mps","memoryMiB":5,"utilization":12.5}]}]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseState(b)
		if err != nil {
			return
		}
		for i, g := range s.GPUs {
			if g.Utilization != nil && (*g.Utilization < 0 || *g.Utilization > 100) {
				t.Errorf("GPU %d: utilisation %v was taken", i, *g.Utilization)
			}
		}
	})
}
