// SPDX-License-Identifier: Apache-2.0

package auto

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// fake is a reader of either kind. Its GPUs give what gives says.
type fake struct {
	mu      sync.Mutex
	name    string
	err     error // of Devices
	gives   map[string][]gpu.FieldID
	lacks   map[string]string // NoProfiling
	texts   map[gpu.FieldID]string
	cannot  gpu.FieldSet  // fields that it does not ask for
	hang    chan struct{} // Read does not return until it is closed
	gate    chan struct{} // Devices does not return until it is closed
	adds    float64       // to the values
	reads   int
	opened  int
	closed  int
	migUUID func(string, int, int) string
	has     []gpu.FieldID // fields outside of the table, of the first
	refuses string        // the GPU that does not give the passed fields
	passed  []gpu.FieldID // every other GPU gives them

	releases int
}

func (f *fake) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fake) Backend() string { return f.name }

func (f *fake) Devices() ([]gpu.Device, error) {
	f.mu.Lock()
	gate := f.gate
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	var out []gpu.Device
	for i := range 2 {
		out = append(out, gpu.Device{Index: i, UUID: fmt.Sprint("GPU-", i)})
	}
	return append(out, gpu.Device{UUID: "MIG-x", MIG: &gpu.MIG{ParentUUID: "GPU-1", GPUInstance: 7, ComputeInstance: -1}}), nil
}

func (f *fake) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	f.mu.Lock()
	f.reads++
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	v.Reset()
	for _, id := range f.gives[uuid] {
		if prof := gpu.ProfilingFields(); want.HasID(id) && !(f.lacks[uuid] != "" && id != gpu.PCIeTxBytes && prof.HasID(id)) {
			v.Set(id, float64(id)+f.adds)
		}
	}
	for _, id := range f.passed {
		if uuid != f.refuses {
			v.Take(id, gpu.Whole(int64(float64(id)+f.adds)))
		}
	}
	for id, text := range f.texts {
		if want.HasID(id) {
			v.SetLabel(id, text)
		}
	}
	return nil
}

func (f *fake) Reasons(string) gpu.Reasons {
	return gpu.Reasons{Asked: gpu.AllFields().Minus(f.cannot), Refused: "refused", Unasked: "not asked"}
}

func (f *fake) NoProfiling(uuid string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lacks[uuid]
}

func (f *fake) ReadParts(gpu.FieldSet, func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	return []gpu.PartSnapshot{{}}, nil
}

func (f *fake) Pass(ids []gpu.FieldID) (others []gpu.FieldID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.passed = nil
	for _, id := range ids {
		if f.name == "dcgm" || slices.Contains(f.has, id) {
			f.passed = append(f.passed, id)
		} else {
			others = append(others, id)
		}
	}
	return others
}

func (f *fake) Release() error {
	f.set(func() { f.releases++ })
	return nil
}

func (f *fake) Close() error {
	f.set(func() { f.closed++ })
	return nil
}

func (*fake) Links(string) (gpu.Links, error)         { return gpu.Links{}, nil }
func (*fake) XIDs(string) []gpu.XIDCount              { return nil }
func (*fake) Processes(string) (gpu.Processes, error) { return gpu.Processes{}, nil }
func (*fake) Topology() (gpu.Topology, error)         { return gpu.Topology{}, nil }

// pair is a reader over two fakes: GPU-0 is from before Hopper, GPU-1 is not.
type pair struct {
	*Reader
	first, second *fake
	log           bytes.Buffer
}

func newPair() *pair {
	p := &pair{
		first: &fake{
			name: "nvml", lacks: map[string]string{"GPU-0": "NVML gives them from Hopper on"},
			gives: map[string][]gpu.FieldID{"GPU-0": {gpu.GPUUtil, gpu.PCIeTxBytes}, "GPU-1": {gpu.GPUUtil, gpu.SMActive}},
		},
		second: &fake{name: "dcgm", lacks: map[string]string{}, gives: map[string][]gpu.FieldID{"GPU-0": {gpu.SMActive, gpu.PCIeTxBytes, gpu.GPUUtil}}},
	}
	p.Reader = New(Config{
		First: p.first, Patience: time.Second, Log: slog.New(slog.NewTextHandler(&p.log, nil)),
		Open: func(migUUID func(string, int, int) string) Second {
			p.second.set(func() { p.second.opened++; p.second.migUUID = migUUID })
			return p.second
		},
	})
	return p
}

func (p *pair) fields(t *testing.T, uuid string, want ...gpu.FieldID) gpu.FieldSet {
	t.Helper()
	var v gpu.Values
	if err := p.Read(uuid, gpu.SetOf(want...), &v); err != nil {
		t.Fatal(err)
	}
	return v.Fields()
}

func bubble(t *testing.T, f func(t *testing.T, p *pair)) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair()
		if _, err := p.Devices(); err != nil {
			t.Fatal(err)
		}
		f(t, p)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// What NVML gives is NVML's; the rest of the profiling fields, and only they,
// come from DCGM; the log says so once.
func TestSupplements(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		wanted := []gpu.FieldID{gpu.GPUUtil, gpu.SMActive, gpu.PCIeTxBytes}
		p.fields(t, "GPU-0", wanted...)
		synctest.Wait()
		before := p.second.reads
		for range 3 {
			if got := p.fields(t, "GPU-0", wanted...); got != gpu.SetOf(wanted...) {
				t.Errorf("GPU-0 gives %v", got)
			}
			if got := p.fields(t, "GPU-1", wanted...); got != gpu.SetOf(gpu.GPUUtil, gpu.SMActive) {
				t.Errorf("GPU-1 gives %v", got)
			}
		}
		if p.second.reads-before != 3 || p.second.opened != 1 {
			t.Errorf("DCGM: opened %d times, read %d times", p.second.opened, p.second.reads-before)
		}
		if why := p.NoProfiling("GPU-0"); why != "" {
			t.Errorf("lacks: %s", why)
		}
		if n := strings.Count(p.log.String(), "read through DCGM"); n != 1 || !strings.Contains(p.log.String(), "from Hopper on") {
			t.Errorf("log:\n%s", &p.log)
		}
		if got := p.second.migUUID("GPU-1", 7, 0); got != "MIG-x" {
			t.Errorf("the instance is %q", got)
		}
	})
}

// DCGM is not opened for what NVML gives, or where nobody wants profiling.
func TestOpensNothingInVain(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.fields(t, "GPU-0", gpu.GPUUtil, gpu.PCIeTxBytes)
		p.fields(t, "GPU-1", gpu.GPUUtil, gpu.SMActive, gpu.TensorActive)
		synctest.Wait()
		if p.second.opened != 0 {
			t.Error("DCGM was opened")
		}
	})
}

const bar1, eccMode gpu.FieldID = 90, 300

// Whatever either gives is there, field by field: numbers and strings, of every
// kind. What both give is the first's.
func TestFieldByField(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.first.cannot = gpu.SetOf(bar1)
		p.first.texts = map[gpu.FieldID]string{gpu.DriverVersion: "590"}
		p.second.adds = 1000
		p.second.gives = map[string][]gpu.FieldID{"GPU-1": {bar1, eccMode, gpu.GPUUtil, gpu.SMActive}}
		p.second.texts = map[gpu.FieldID]string{gpu.DriverVersion: "580", gpu.OEMInforomVersion: "2.1"}
		want := gpu.SetOf(gpu.GPUUtil, gpu.SMActive, bar1, eccMode, gpu.FanSpeed, gpu.DriverVersion, gpu.OEMInforomVersion)
		var v gpu.Values
		for range 4 {
			if err := p.Read("GPU-1", want, &v); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Second)
		}
		if got := v.Given(); got != want.Minus(gpu.SetOf(gpu.FanSpeed)) {
			t.Errorf("given %v", got)
		}
		for id, want := range map[gpu.FieldID]float64{gpu.GPUUtil: 203, gpu.SMActive: 1002, bar1: 1090, eccMode: 1300} {
			if x, _ := v.Get(id); x != want {
				t.Errorf("%s = %v, want %v", id, x, want)
			}
		}
		for id, want := range map[gpu.FieldID]string{gpu.DriverVersion: "590", gpu.OEMInforomVersion: "2.1"} {
			if text, _ := v.GetLabel(id); text != want {
				t.Errorf("%s = %q, want %q", id, text, want)
			}
		}
		i, _ := gpu.IndexOf(gpu.FanSpeed)
		if w := p.Reasons("GPU-1"); w.Why(i) != "refused; DCGM does not give it for this device" {
			t.Errorf("why there is no fan speed: %q", w.Why(i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.second.opened != 1 || p.second.closed != 0 {
			t.Errorf("opened %d times, closed %d times", p.second.opened, p.second.closed)
		}
	})
}

// A rate needs two readings of the first: that opens nothing.
func TestRatesComeLater(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.fields(t, "GPU-1", gpu.GPUUtil, gpu.NVLinkBandwidth)
		time.Sleep(100 * time.Millisecond)
		p.fields(t, "GPU-1", gpu.GPUUtil, gpu.NVLinkBandwidth)
		p.first.set(func() { p.first.gives["GPU-1"] = append(p.first.gives["GPU-1"], gpu.NVLinkBandwidth) })
		for range 10 {
			time.Sleep(time.Second)
			p.fields(t, "GPU-1", gpu.GPUUtil, gpu.NVLinkBandwidth)
		}
		synctest.Wait()
		if p.second.opened != 0 {
			t.Error("DCGM was opened")
		}
	})
}

// DCGM that gives none of what is lacking is let go, and tried again later and
// later; at once when more is wanted of it. A MIG instance's utilisation, which
// nobody gives, opens nothing.
func TestGivesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		ticks := func(n int, uuid string, want ...gpu.FieldID) {
			t.Helper()
			for range n {
				p.fields(t, uuid, want...)
				time.Sleep(time.Second)
			}
			synctest.Wait()
		}
		opened := func(want int) {
			t.Helper()
			if p.second.opened != want || p.second.closed != want {
				t.Errorf("opened %d times, closed %d times, want %d", p.second.opened, p.second.closed, want)
			}
		}
		ticks(30, "MIG-x", gpu.GPUUtil, gpu.EncUtil)
		opened(0)
		ticks(30, "GPU-1", gpu.GPUUtil, gpu.FanSpeed)
		opened(1)
		i, _ := gpu.IndexOf(gpu.FanSpeed)
		if w := p.Reasons("GPU-1"); w.Why(i) != "refused; DCGM does not give it for this device" {
			t.Errorf("why: %q", w.Why(i))
		}
		ticks(int(reopenAfter.Seconds()), "GPU-1", gpu.GPUUtil, gpu.FanSpeed)
		opened(2)
		ticks(int(reopenAfter.Seconds()), "GPU-1", gpu.GPUUtil, gpu.FanSpeed)
		opened(2)
		ticks(30, "GPU-1", gpu.GPUUtil, gpu.FanSpeed, eccMode)
		opened(3)
	})
}

// Why a field is not there is true at every moment.
func TestReasons(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.first.cannot = gpu.SetOf(bar1)
		p.second.err = fmt.Errorf("%w: libdcgm.so.4", gpu.ErrNoLibrary)
		f := func(id gpu.FieldID, want string) {
			t.Helper()
			i, _ := gpu.IndexOf(id)
			if w := p.Reasons("GPU-1"); w.Why(i) != want {
				t.Errorf("%s: %q, want %q", id, w.Why(i), want)
			}
		}
		f(bar1, "not asked")
		p.fields(t, "GPU-1", eccMode)
		f(eccMode, "refused; "+gpu.UnaskedOfDCGM)
		gate := make(chan struct{})
		p.second.set(func() { p.second.gate = gate })
		p.fields(t, "GPU-1", eccMode, bar1)
		f(bar1, "not read through NVML; DCGM is being opened")
		close(gate)
		synctest.Wait()
		f(bar1, "not read through NVML; through DCGM: GPU library not found: libdcgm.so.4")
		f(eccMode, "refused; through DCGM: GPU library not found: libdcgm.so.4")
		if n := testing.AllocsPerRun(100, func() { p.Reasons("GPU-1") }); n > 0 {
			t.Errorf("Reasons allocates %v times", n)
		}
		gate = make(chan struct{})
		p.second.set(func() { p.second.err, p.second.gate = nil, gate })
		time.Sleep(reloadAfter)
		p.fields(t, "GPU-1", eccMode, bar1)
		close(gate)
		synctest.Wait()
		f(bar1, "not read through NVML; DCGM has not answered yet")
		p.fields(t, "GPU-1", eccMode, bar1)
		f(bar1, "not read through NVML; DCGM does not give it for this device")
	})
}

// What DCGM cannot give either has a reason; DCGM is let go, and tried again
// much later.
func TestNobodyGives(t *testing.T) {
	for name, spoil := range map[string]func(*fake){
		"no library":   func(f *fake) { f.err = fmt.Errorf("%w: libdcgm.so.4", gpu.ErrNoLibrary) },
		"no profiling": func(f *fake) { f.lacks["GPU-0"] = "requires root" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, p *pair) {
				spoil(p.second)
				for range 40 {
					p.fields(t, "GPU-0", gpu.SMActive)
					time.Sleep(time.Second)
				}
				synctest.Wait()
				if p.second.opened != 1 || p.second.closed != 1 {
					t.Errorf("opened %d times, closed %d times", p.second.opened, p.second.closed)
				}
				why := p.NoProfiling("GPU-0")
				if !strings.Contains(why, "from Hopper on; through DCGM: ") {
					t.Errorf("reason %q", why)
				}
				if n := strings.Count(p.log.String(), "gives no profiling fields"); n != 1 {
					t.Errorf("said %d times:\n%s", n, &p.log)
				}
				time.Sleep(reopenAfter)
				p.fields(t, "GPU-0", gpu.SMActive)
				synctest.Wait()
				if p.second.opened != 2 {
					t.Errorf("opened %d times", p.second.opened)
				}
			})
		})
	}
}

// A DCGM that hangs costs its fields and a little time, once.
func TestHangOfTheSecond(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.fields(t, "GPU-0", gpu.SMActive)
		synctest.Wait()
		hang := make(chan struct{})
		p.second.set(func() { p.second.hang = hang })
		start := time.Now()
		for range 5 {
			if got := p.fields(t, "GPU-0", gpu.GPUUtil, gpu.SMActive); got != gpu.SetOf(gpu.GPUUtil) {
				t.Errorf("gives %v", got)
			}
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("five reads took %v", took)
		}
		p.second.set(func() { p.second.hang = nil })
		close(hang)
		synctest.Wait()
		if got := p.fields(t, "GPU-0", gpu.GPUUtil, gpu.SMActive); got != gpu.SetOf(gpu.GPUUtil, gpu.SMActive) {
			t.Errorf("afterwards it gives %v", got)
		}
	})
}

// A field that is not in the table opens DCGM, which gives it for all devices, and keeps
// it open; without DCGM the log says once what is missing.
func TestPassed(t *testing.T) {
	const recovery gpu.FieldID = 1523
	bubble(t, func(t *testing.T, p *pair) {
		p.Pass([]gpu.FieldID{recovery})
		if p.first.passed != nil {
			t.Error("NVML is asked")
		}
		for range 2 {
			var v gpu.Values
			if err := p.Read("GPU-1", gpu.SetOf(gpu.GPUUtil), &v); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			time.Sleep(time.Minute)
			if _, ok := v.Get(gpu.GPUUtil); !ok {
				t.Error("there is no utilisation")
			}
		}
		var v gpu.Values
		if err := p.Read("GPU-1", gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
		if x, ok := v.Passed(recovery); !ok || x != gpu.Whole(1523) || p.second.opened != 1 || p.second.closed != 0 {
			t.Errorf("it is %v, %v; DCGM was opened %d times and closed %d times", x, ok, p.second.opened, p.second.closed)
		}
		p.Pass(nil)
		v.Reset()
		if err := p.Read("GPU-1", gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
		if _, ok := v.Passed(recovery); ok {
			t.Error("it is still passed")
		}
	})
	bubble(t, func(t *testing.T, p *pair) {
		p.second.err = gpu.ErrNoLibrary
		p.Pass([]gpu.FieldID{recovery})
		for range 3 {
			p.fields(t, "GPU-1", gpu.GPUUtil)
			synctest.Wait()
			time.Sleep(2 * time.Minute)
		}
		if why := p.Reasons("GPU-1").Unasked; !strings.Contains(why, gpu.ErrNoLibrary.Error()) {
			t.Errorf("the reason is %q", why)
		}
	})
}

// NVML's equivalents of DCGM's fields do not open DCGM. If a device lacks one, DCGM
// gives it for that device; the others keep NVML's.
func TestPassedByBoth(t *testing.T) {
	const recovery, throttled, chassis gpu.FieldID = 1523, 1420, 572
	passed := func(t *testing.T, p *pair, uuid string) string {
		t.Helper()
		var v gpu.Values
		if err := p.Read(uuid, gpu.SetOf(gpu.GPUUtil), &v); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := map[int]float64{}
		for id, n := range v.AllPassed() {
			if _, twice := got[int(id)]; twice {
				t.Errorf("%s gives %v twice", uuid, id)
			}
			got[int(id)] = n.Float
		}
		return fmt.Sprint(got)
	}
	bubble(t, func(t *testing.T, p *pair) {
		p.first.has = []gpu.FieldID{recovery, throttled}
		p.second.adds = 10000
		p.Pass([]gpu.FieldID{throttled, recovery})
		for _, uuid := range []string{"GPU-0", "GPU-1"} {
			if got := passed(t, p, uuid); got != "map[1420:1420 1523:1523]" {
				t.Errorf("%s gives %s", uuid, got)
			}
		}
		if parts, err := p.ReadParts(gpu.FieldSet{}, nil); parts != nil || err != nil || p.second.opened != 0 {
			t.Errorf("for what NVML gives, DCGM was opened %d times, and has parts %v, %v", p.second.opened, parts, err)
		}
		p.first.set(func() { p.first.refuses = "GPU-0" })
		passed(t, p, "GPU-0")
		for uuid, want := range map[string]string{"GPU-0": "map[1420:11420 1523:11523]", "GPU-1": "map[1420:1420 1523:1523]"} {
			if got := passed(t, p, uuid); got != want {
				t.Errorf("%s gives %s, want %s", uuid, got, want)
			}
		}
	})
	bubble(t, func(t *testing.T, p *pair) {
		p.first.has = []gpu.FieldID{recovery}
		p.Pass([]gpu.FieldID{chassis, recovery})
		passed(t, p, "GPU-1")
		if got := passed(t, p, "GPU-1"); got != "map[572:572 1523:1523]" {
			t.Errorf("GPU-1 gives %s", got)
		}
		if diff := cmp.Diff([]gpu.FieldID{chassis}, p.second.passed); diff != "" {
			t.Errorf("DCGM reads (-want +got):\n%s", diff)
		}
	})
}

// Parts open DCGM, and keep it open.
func TestPartsOpenTheSecond(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.second.lacks["GPU-0"] = "requires root"
		all := func(*gpu.Part) bool { return true }
		parts, err := p.ReadParts(gpu.AllPartFields(), all)
		if err != nil || len(parts) != 1 {
			t.Fatalf("%v, %v", parts, err)
		}
		p.fields(t, "GPU-0", gpu.SMActive)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p.second.closed != 0 {
			t.Error("DCGM was let go")
		}
	})
}

func TestPartsWithoutLibrary(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		p.second.err = gpu.ErrNoLibrary
		for range 3 {
			_, err := p.ReadParts(gpu.AllPartFields(), nil)
			synctest.Wait()
			if err == nil {
				t.Error("parts were read")
			}
		}
		if _, err := p.ReadParts(gpu.AllPartFields(), nil); !strings.Contains(err.Error(), "library") || errors.Is(err, errOpening) {
			t.Errorf("%v", err)
		}
	})
}

// A release closes DCGM and releases NVML. A read that was still in NVML does not open DCGM again: the next enumeration allows
// that.
func TestRelease(t *testing.T) {
	bubble(t, func(t *testing.T, p *pair) {
		for i := range 2 {
			p.fields(t, "GPU-0", gpu.SMActive)
			synctest.Wait()
			if p.second.opened != i+1 || p.second.closed != i {
				t.Fatalf("%d: DCGM was opened %d times, closed %d times", i, p.second.opened, p.second.closed)
			}
			if err := p.Release(); err != nil {
				t.Fatal(err)
			}
			p.fields(t, "GPU-0", gpu.SMActive)
			synctest.Wait()
			if p.second.opened != i+1 || p.second.closed != i+1 || p.first.releases != i+1 {
				t.Errorf("%d: DCGM was opened %d times, closed %d times; NVML was released %d times", i, p.second.opened, p.second.closed, p.first.releases)
			}
			if _, err := p.Devices(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
