// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ebitengine/purego"

	"github.com/gpupilot/gpupilot/test/gputest"
)

// fake is the fake libcuda of test/fakes/cuda, which this process loads once.
type fake struct {
	library, scenario string
	now               func() uint64
	sleepUntil        func(ns uint64)
	left              func(thing int32) int64
	calls             func() int32
	reset             func() // ends all contexts
}

var fakes = sync.OnceValues(func() (*fake, error) {
	path, err := filepath.Abs("../../../bin/libcuda-fake.so")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cuda")
	if err != nil {
		return nil, err
	}
	f := &fake{library: path, scenario: filepath.Join(dir, "gpus")}
	// The library reads the environment of the C library, which Setenv of this process sets too.
	if err := os.Setenv("GPUPILOT_FAKE_CUDA", f.scenario); err != nil {
		return nil, err
	}
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	purego.RegisterLibFunc(&f.now, handle, "gpupilot_fake_now")
	purego.RegisterLibFunc(&f.sleepUntil, handle, "gpupilot_fake_sleep_until")
	purego.RegisterLibFunc(&f.left, handle, "gpupilot_fake_left")
	purego.RegisterLibFunc(&f.reset, handle, "gpupilot_fake_reset")
	purego.RegisterLibFunc(&f.calls, handle, "gpupilot_fake_calls")
	return f, nil
})

// gpus returns the fake with a scenario, in its own time.
func gpus(t *testing.T, lines ...string) *fake {
	t.Helper()
	gputest.Library(t, "libcuda-fake.so") // makes it
	f, err := fakes()
	if err != nil {
		t.Fatal(err)
	}
	f.write(t, lines...)
	return f
}

func (f *fake) write(t *testing.T, lines ...string) {
	t.Helper()
	text := "gpus 1\npace free\n" + strings.Join(lines, "\n") + "\n# " + t.Name() + "\n"
	if err := os.WriteFile(f.scenario+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(f.scenario+".new", f.scenario); err != nil {
		t.Fatal(err)
	}
}

// Now and SleepUntil are the fake's time.
func (f *fake) Now() time.Time         { return time.Unix(0, int64(f.now())) }
func (f *fake) SleepUntil(t time.Time) { f.sleepUntil(uint64(t.UnixNano())) }
func (f *fake) job(sequences ...Sequence) Job {
	return Job{Library: f.library, NVML: "libnone.so", Sequences: sequences, Bounds: Bounds{MemoryBytes: 1 << 30}}
}

// run runs a job and returns its steps and notes.
func (f *fake) run(ctx context.Context, job Job) (steps []Step, notes []string, err error) {
	err = Run(ctx, job, f, func(m Message) error {
		if m.Step != nil {
			steps = append(steps, *m.Step)
		}
		if m.Note != "" {
			notes = append(notes, m.Note)
		}
		return nil
	})
	return steps, notes, err
}

func (f *fake) nothingLeft(t *testing.T, what string) {
	t.Helper()
	for i, thing := range []string{"contexts", "modules", "streams", "events", "bytes of the device", "bytes of the host"} {
		if n := f.left(int32(i)); n != 0 {
			t.Errorf("%s: %d %s are left", what, n, thing)
		}
	}
}

// one is a sequence of one load with a shape.
func one(name string, s Shape, d time.Duration) Sequence {
	return Sequence{Kinds: []string{name}, Shapes: map[string]Shape{name: s}, Duration: d, Report: d}
}

func constant(v float64) Shape { return Shape{Form: Constant, Values: []float64{v}} }

// The duty that was asked for is the duty that the device measured, and what is generated follows from it.
func TestDuty(t *testing.T) {
	f := gpus(t, "gpu * jitter 1500")
	for _, name := range []string{"graphics", "sm-active", "sm-occupancy", "tensor", "dram", "fp64", "fp32", "fp16", VectorAdd} {
		for _, duty := range []float64{0, 0.02, 0.2, 0.4, 0.5, 0.6, 0.8, 1} {
			steps, _, err := f.run(t.Context(), f.job(one(name, constant(duty), 2*time.Second)))
			if err != nil || len(steps) != 1 {
				t.Fatalf("%s %v: %d steps, %v", name, duty, len(steps), err)
			}
			s := steps[0]
			if math.Abs(s.Busy-duty) > 0.02 || math.Abs(s.Duty-duty) > 1e-6 {
				t.Errorf("%s %v: the device was busy for %v", name, duty, s.Busy)
			}
			want := map[string]float64{"tensor": 0.97, "fp64": 0.97, "fp32": 0.97, "fp16": 0.97, "dram": 0.92}[name] * duty
			if want == 0 {
				want = duty
			}
			if s.Generated == nil || math.Abs(*s.Generated-want) > 0.02 || s.Error < 0 || s.Error > 0.02 {
				t.Errorf("%s %v: generated %v ± %v, want %v", name, duty, *s.Generated, s.Error, want)
			}
		}
	}
	f.nothingLeft(t, "duties")
}

var everyCode = flag.Bool("every-code", false, "inject every code at every call, a third of them otherwise")

// Whatever call fails, and how, the failure has a message and an exit code of its own, and nothing is left.
func TestEveryCallFails(t *testing.T) {
	codes := map[int]int{
		1: ExitUnmeasured, 2: ExitMemory, 46: ExitBusy, 100: ExitNoGPU, 209: ExitKernel, 214: ExitECC, 218: ExitKernel, 222: ExitDriver,
		702: ExitLaunch, 719: ExitLaunch, 803: ExitDriver, 999: ExitLost,
	}
	const small = "gpu * sms 4\ngpu * pcie 0.5"
	f := gpus(t, small)
	job := f.job(one("dram", constant(0.5), 30*time.Millisecond), one("pcie-tx", constant(0.2), 20*time.Millisecond))
	job.Bounds.MemoryBytes = 2 << 20
	if _, _, err := f.run(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	total := int(f.calls())
	tolerated := map[string]bool{}
	began := time.Now()
	list := slices.Sorted(maps.Keys(codes))
	for n := 1; n <= total; n++ {
		for i, code := range list {
			if !*everyCode && (i+n)%3 != 0 { // each call of many has a third of the codes
				continue
			}
			exit := codes[code]
			f.write(t, small, fmt.Sprintf("inject %d %d", n, code))
			_, _, err := f.run(t.Context(), job)
			what := fmt.Sprintf("code %d at call %d of %d", code, n, total)
			if n < total { // the last call is the release of the context: the end of the process repeats it
				f.nothingLeft(t, what)
			}
			f.reset()
			var failure *Failure
			switch {
			case err == nil: // an attribute that the driver does not know, and its version
				tolerated[what] = true
			case !errors.As(err, &failure) || failure.Code != exit || !strings.Contains(failure.Message, fmt.Sprint(code)):
				t.Errorf("%s: %v, want exit code %d", what, err, exit)
			}
		}
	}
	// Attributes are read 9 times, the driver's version once; a fatal code is seen by the next call.
	if most := 11 * len(codes); len(tolerated) > most {
		t.Errorf("%d failures were not seen, want at most %d", len(tolerated), most)
	}
	t.Logf("%d calls × %d codes, %d tolerated, %v", total, len(codes), len(tolerated), time.Since(began))
}

// An interrupt ends the load within 100 ms of the device's time, reports the step that was under way, and leaves nothing.
func TestInterrupt(t *testing.T) {
	f := gpus(t)
	for _, name := range []string{"graphics", "sm-active", "tensor", "dram", "pcie-rx"} {
		ctx, cancel := context.WithCancel(t.Context())
		var at time.Time
		steps := 0
		q := one(name, constant(0.5), time.Hour)
		q.Report = 200 * time.Millisecond
		err := Run(ctx, f.job(q), f, func(m Message) error {
			if m.Step != nil {
				if steps++; steps == 3 {
					at = f.Now()
					cancel()
				}
			}
			return nil
		})
		if took := f.Now().Sub(at); !errors.Is(err, context.Canceled) || took > 100*time.Millisecond {
			t.Errorf("%s: ended %v after the interrupt: %v", name, took, err)
		}
		if steps != 4 {
			t.Errorf("%s: %d steps, want 4: the last one is cut short", name, steps)
		}
		f.nothingLeft(t, name)
	}
}

// A GPU that hangs is lost, though its driver never returns.
func TestHang(t *testing.T) {
	f := gpus(t)
	steps := 0
	r := &runner{job: f.job(one("fp32", constant(1), time.Hour)), clock: f, hangAfter: 200 * time.Millisecond, send: func(m Message) error {
		if m.Step != nil {
			if steps++; steps == 1 {
				f.write(t, "gpu 0 hang 1000")
			}
		}
		return nil
	}}
	r.job.Sequences[0].Report = 200 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var failure *Failure
	if err := r.start(ctx); !errors.As(err, &failure) || failure.Code != ExitLost || !strings.Contains(failure.Message, "hangs") {
		t.Errorf("%v", err)
	}
	// The thread comes back when the hang is over.
	cancel()
	for deadline := time.Now().Add(time.Minute); f.left(0) != 0 && time.Now().Before(deadline); f.SleepUntil(f.Now().Add(time.Millisecond)) {
	}
}

// The shape of a ramp, of steps and of two loads at once arrives on the device.
func TestShapesArrive(t *testing.T) {
	f := gpus(t, "gpu * jitter 1500")
	ramp := Shape{Form: Ramp, Values: []float64{0, 1}, Every: 10 * time.Second}
	for _, name := range []string{"graphics", "sm-active", "sm-occupancy", "fp32", "pcie-tx"} {
		q := one(name, ramp, 10*time.Second)
		q.Report = time.Second
		steps, _, err := f.run(t.Context(), f.job(q))
		if err != nil || len(steps) != 10 {
			t.Fatalf("%s: %d steps, %v", name, len(steps), err)
		}
		for i, s := range steps {
			if want := 0.05 + 0.1*float64(i); math.Abs(s.Duty-want) > 0.005 || math.Abs(s.Busy-want) > 0.02 {
				t.Errorf("%s, step %d: asked %.3f, busy %.3f, want %.3f", name, i, s.Duty, s.Busy, want)
			}
			if d := s.End.Sub(s.Start); d < 950*time.Millisecond || d > 1050*time.Millisecond {
				t.Errorf("%s, step %d takes %v", name, i, d)
			}
			if i > 0 && !s.Start.Equal(steps[i-1].End) && s.Start.Sub(steps[i-1].End).Abs() > time.Millisecond {
				t.Errorf("%s: step %d begins at %v, the one before ends at %v", name, i, s.Start, steps[i-1].End)
			}
		}
	}
	both := Sequence{
		Kinds: []string{"fp32", "dram"}, Duration: 2 * time.Second, Report: 2 * time.Second,
		Shapes: map[string]Shape{"fp32": constant(0.3), "dram": constant(0.7)},
	}
	steps, _, err := f.run(t.Context(), f.job(both))
	if err != nil || len(steps) != 2 {
		t.Fatalf("%d steps, %v", len(steps), err)
	}
	// In the fake's own time, one thread's wait can leave the other's stream without work: only the upper limit is sure.
	for _, s := range steps {
		if want := both.Shapes[s.Load].Values[0]; s.Busy <= 0 || s.Busy > want+0.03 {
			t.Errorf("%s: %v, want %v", s.Load, s.Busy, want)
		}
	}
	f.nothingLeft(t, "shapes")
}

// What the GPU does worse shows in what is reported.
func TestFaultyGPUs(t *testing.T) {
	full := func(name string, lines ...string) Step {
		t.Helper()
		steps, _, err := gpus(t, lines...).run(t.Context(), must(fakes()).job(one(name, Full(), time.Second)))
		if err != nil || len(steps) != 1 || steps[0].Generated == nil {
			t.Fatalf("%s %v: %v, %v", name, lines, steps, err)
		}
		return steps[0]
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02*want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	near("half rate", *full("fp32", "gpu * rate 0.5").Generated, 0.485)
	s := full("fp32", "gpu * clock 990")
	near("throttled: the pipe's share stays", *s.Generated, 0.97)
	near("throttled: clock", *s.ClockMHz, 990)
	near("throttled: TFLOP/s", *s.Rate, 32.45)
	near("one SM missing", *full("sm-active", "gpu * missing_sms 1").Generated, 131./132)
	near("A100", *full("tensor", "gpu * cc 80", "gpu * sms 108", "gpu * clock 1410").Rate, 302.6)
	near("T4", *full("tensor", "gpu * cc 75", "gpu * sms 40", "gpu * threads_per_sm 1024", "gpu * clock 1590", "gpu * l2 4").Generated, 0.97)
	if v := full("tensor", "gpu * cc 75").Variant; v != "mma.sync.m16n8k8" {
		t.Errorf("a T4 runs %s", v)
	}
	if v := full("tensor", "gpu * cc 70").Variant; v != "mma.sync.m8n8k4" {
		t.Errorf("a V100 runs %s", v)
	}
	steps, _, err := gpus(t, "gpu * cc 130").run(t.Context(), must(fakes()).job(one("fp32", Full(), time.Second)))
	if err != nil || len(steps) != 1 || steps[0].Generated != nil || steps[0].Rate == nil {
		t.Errorf("an unknown model: %+v, %v", steps, err)
	}
}

func must(f *fake, _ error) *fake { return f }

// A setting that makes the load impossible ends it with its own exit code and message.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		line, load string
		code       int
		message    string
	}{
		{"driver not-loaded", "fp32", ExitNoGPU, "NO_DEVICE"},
		{"gpu 0 compute_mode 3", "fp32", ExitBusy, "exclusive"},
		{"gpu 0 cc 61", "fp32", ExitKernel, "6.1"},
		{"jit-fails", "fp32", ExitKernel, "ptxas fatal"},
		{"gpu 0 used 143771", "dram", ExitMemory, "memory"},
		{"gpu 0 timer 1000000", "fp32", ExitUnmeasured, "timer"},
		{"gpu 0 fail cuLaunchKernel ECC_UNCORRECTABLE", "fp32", ExitECC, "uncorrectable"},
		{"", "nvlink-tx", ExitUnmeasured, "second GPU"},
	} {
		f := gpus(t, c.line)
		_, _, err := f.run(t.Context(), f.job(one(c.load, Full(), time.Second)))
		var failure *Failure
		if !errors.As(err, &failure) || failure.Code != c.code || !strings.Contains(failure.Message, c.message) {
			t.Errorf("%s: %v, want %q with exit code %d", c.line, err, c.message, c.code)
		}
		f.nothingLeft(t, c.line)
	}
}

func TestNVLink(t *testing.T) {
	f := gpus(t, "gpus 2")
	for _, name := range []string{"nvlink-tx", "nvlink-rx"} {
		steps, _, err := f.run(t.Context(), f.job(one(name, constant(0.5), 2*time.Second)))
		if err != nil || len(steps) != 1 {
			t.Fatalf("%s: %v, %v", name, steps, err)
		}
		if math.Abs(*steps[0].Rate-190) > 4 {
			t.Errorf("%s: %v GB/s, want 190", name, *steps[0].Rate)
		}
		f.nothingLeft(t, name)
	}
}
