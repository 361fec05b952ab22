// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/test/gputest"
)

// TestMain lets the test's program be the command that it starts for each GPU.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "load" {
		main()
		return
	}
	os.Exit(m.Run())
}

// fakeCUDA gives the commands of a test a fake driver with a scenario, and returns their flags and the fake's log.
func fakeCUDA(t testing.TB, lines ...string) (flags []string, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	text := strings.Join(append([]string{"gpus 2", "log " + log}, lines...), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "gpus"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUPILOT_FAKE_CUDA", filepath.Join(dir, "gpus"))
	return []string{"--cuda-library", gputest.Library(t, "libcuda-fake.so"), "--nvml-library", "libnone.so"}, log
}

// loadGPU runs load gpu and returns its steps.
func loadGPU(t *testing.T, args ...string) ([]load.Step, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), append([]string{"load", "gpu", "-o", "json"}, args...), &out)
	var steps []load.Step
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, `{"check"`) {
			continue
		}
		var s load.Step
		if err := json.Unmarshal([]byte(line), &s); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		steps = append(steps, s)
	}
	return steps, err
}

// The arguments of NVIDIA's article, in one argument, load both GPUs, each in a process of its own.
func TestLoadGPU(t *testing.T) {
	flags, log := fakeCUDA(t)
	steps, err := loadGPU(t, append(flags, "--no-dcgm-validation", "-t 1007 -d 0.4 -r 0.2")...)
	if err != nil {
		t.Fatalf("%+v, %v", steps, err)
	}
	seen := map[string]bool{}
	for _, s := range steps {
		seen[s.GPU.UUID] = true
	}
	if len(seen) != 2 {
		t.Errorf("GPUs: %v", seen)
	}
	b, _ := os.ReadFile(log)
	if n := strings.Count(string(b), "left modules 0 streams 0 events 0 device-bytes 0 host-bytes 0"); n != 2 {
		t.Errorf("%d processes left nothing, want 2", n)
	}
}

func TestLoadChoosesGPUs(t *testing.T) {
	flags, _ := fakeCUDA(t, "gpu 0 mig 1g.18gb 2")
	const gpu1, mig1 = "GPU-48323030-6670-4000-8000-000000000001", "MIG-48323030-6670-5000-8000-000000000008"
	for name, want := range map[string]string{"1": gpu1, gpu1: gpu1, "0000:19:00.0": gpu1, mig1: mig1} {
		steps, err := loadGPU(t, append(flags, "-t", "sm-active", "-d", "0.1", "--gpu", name)...)
		if err != nil || len(steps) != 1 || steps[0].GPU.UUID != want {
			t.Errorf("%s: %+v, %v", name, steps, err)
		}
		if name == mig1 && (len(steps) != 1 || steps[0].GPU.SMs != 16) {
			t.Errorf("the instance: %+v", steps)
		}
	}
	var failure *load.Failure
	if _, err := loadGPU(t, append(flags, "-t", "fp32", "--gpu", "7")...); !errors.As(err, &failure) || exitCode(err) != load.ExitNoGPU {
		t.Errorf("GPU 7: %v", err)
	}
}

func TestLoadWithoutGPU(t *testing.T) {
	fakeCUDA(t)
	_, err := loadGPU(t, "-t", "fp32", "--cuda-library", "libnone.so")
	if err == nil || exitCode(err) != load.ExitNoGPU {
		t.Fatal(err)
	}
	for _, part := range []string{"libnone.so: the library could not be loaded", "/dev/nvidia*", "/proc/driver/nvidia/version", "LD_LIBRARY_PATH"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%v: want %q", err, part)
		}
	}
}

// Each fault ends the command with an exit code of its own, and a message that names it.
func TestLoadFaults(t *testing.T) {
	nvml := gputest.Library(t, "libnvidia-ml-fake.so")
	for _, c := range []struct {
		cuda, nvml string // lines of the fakes
		args       string
		code       int
		message    string
	}{
		{cuda: "gpu 0 fail cuLaunchKernel UNKNOWN", code: load.ExitLost, message: "xid"},
		{cuda: "gpu 0 fail cuLaunchKernel ECC_UNCORRECTABLE", code: load.ExitECC, message: "memory error"},
		{cuda: "gpu 0 fail cuLaunchKernel LAUNCH_FAILED", code: load.ExitLaunch, message: "kernel failed"},
		{cuda: "gpu 0 compute_mode 3", code: load.ExitBusy, message: "exclusive"},
		{cuda: "gpu 0 used 143771", args: "-t dram", code: load.ExitMemory, message: "memory"},
		{args: "-t dram --memory 32Ki", code: load.ExitMemory, message: "--memory"},
		{cuda: "inject 1 803", code: load.ExitDriver, message: "different versions"},
		{cuda: "driver not-loaded", code: load.ExitNoGPU, message: "/dev/nvidia"},
		{cuda: "jit-fails", code: load.ExitKernel, message: "ptxas"},
		{nvml: "gpu 0 power 650", args: "--power-max 600", code: load.ExitBound, message: "650 W, more than --power-max 600"},
		{nvml: "gpu 0 temp 91", args: "--temp-max 85", code: load.ExitBound, message: "91 °C, more than --temp-max 85"},
		{nvml: "gpu 0 unsupported power", args: "--power-max 600", code: load.ExitUnmeasured, message: "--power-max"},
		{nvml: "gpu 0 power 650", args: "--power-max 700"},
	} {
		flags, log := fakeCUDA(t, c.cuda)
		scenario := filepath.Join(t.TempDir(), "nvml")
		if err := os.WriteFile(scenario, []byte("gpus 2\n"+c.nvml+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("GPUPILOT_FAKE_NVML", scenario)
		if c.args == "" || strings.HasPrefix(c.args, "--") {
			c.args += " -t fp32"
		}
		_, err := loadGPU(t, slices.Concat(flags, []string{"--nvml-library", nvml, "--gpu", "0", "-d", "0.6"}, strings.Fields(c.args))...)
		code := 0
		if err != nil {
			code = exitCode(err)
		}
		if code != c.code || err != nil && !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s %s %s: exit code %d, %v: want %d, %q", c.cuda, c.nvml, c.args, code, err, c.code, c.message)
		}
		b, _ := os.ReadFile(log)
		if left := regexp.MustCompile(`left .* [1-9]`).Find(b); left != nil {
			t.Errorf("%s: %s", c.cuda, left)
		}
	}
}

// An interrupt ends all processes of the built program, which leave nothing.
func TestLoadInterrupted(t *testing.T) {
	_, log := interruptLoad(t)
	b, _ := os.ReadFile(log)
	if n := strings.Count(string(b), "left modules 0 streams 0 events 0 device-bytes 0 host-bytes 0"); n != 2 {
		t.Errorf("%d processes left nothing, want 2", n)
	}
}

// The built program ends soon after an interrupt: end-ms is at most 100 on a machine that does nothing else.
func BenchmarkLoadInterrupted(b *testing.B) {
	var took time.Duration
	for b.Loop() {
		one, _ := interruptLoad(b)
		took += one
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "end-ms")
}

// interruptLoad runs the built program on two GPUs and interrupts it. It returns how long the program's processes ran after the
// interrupt, and the log of the fake driver.
func interruptLoad(t testing.TB) (took time.Duration, log string) {
	t.Helper()
	program, err := filepath.Abs("../../bin/gpupilot")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("%v: make builds it", err)
	}
	flags, log := fakeCUDA(t)
	cmd := exec.CommandContext(t.Context(), program, append([]string{"load", "gpu", "-o", "json", "-t", "dram", "-d", "3600", "-r", "0.1"}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		t.Fatal("no step")
	}
	started := time.Now()
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // until all processes have ended
	}
	took = time.Since(started)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v, want exit code 130", err)
	}
	return took, log
}
