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
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/load"
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
func fakeCUDA(t *testing.T, lines ...string) (flags []string, log string) {
	t.Helper()
	library, err := filepath.Abs("../../bin/libcuda-fake.so")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(library); err != nil {
		t.Skipf("%v: make fakes", err)
	}
	dir := t.TempDir()
	log = filepath.Join(dir, "log")
	text := strings.Join(append([]string{"gpus 2", "log " + log}, lines...), "\n") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "gpus"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUPILOT_FAKE_CUDA", filepath.Join(dir, "gpus"))
	return []string{"--cuda-library", library, "--nvml-library", "libnone.so"}, log
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
	if err != nil || len(steps) < 3 {
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

// An interrupt ends all processes of the built program, which leave nothing.
func TestLoadInterrupted(t *testing.T) {
	program, err := filepath.Abs("../../bin/gpupilot")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("%v: make", err)
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
	took := time.Since(started)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("%v, want exit code 130", err)
	}
	t.Logf("ended %v after the interrupt", took)
	if took > 2*time.Second { // 100 ms on a machine that does nothing else
		t.Errorf("ended %v after the interrupt", took)
	}
	b, _ := os.ReadFile(log)
	if n := strings.Count(string(b), "left modules 0 streams 0 events 0 device-bytes 0 host-bytes 0"); n != 2 {
		t.Errorf("%d processes left nothing, want 2", n)
	}
}
