// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpupilot/gpupilot/test/gputest"
)

// open reports whether this process has an open file.
func open(t *testing.T, name string) bool {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(fds) == 0 {
		t.Fatalf("%d open files, %v", len(fds), err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && to == name {
			return true
		}
	}
	return false
}

// SIGUSR1 closes NVML and DCGM: no file of a device is open, and the page says so. SIGHUP opens them again.
func TestReleaseClosesTheDevices(t *testing.T) {
	caught := make(chan os.Signal, 8) // a signal that nobody awaits would end the test
	signal.Notify(caught, syscall.SIGUSR1, syscall.SIGHUP)
	defer signal.Stop(caught)
	nvml, dcgm := writeFile(t, "nvidia0", ""), writeFile(t, "nvidia1", "")
	t.Setenv("GPUPILOT_FAKE_NVML_DEVICE", nvml)
	t.Setenv("GPUPILOT_FAKE_DCGM_DEVICE", dcgm)
	t.Setenv("GPUPILOT_FAKE_NVML", writeFile(t, "nvml", "gpus 1\ngpu * unsupported gpm\ngpu 0 util 63\n")) // before Hopper: DCGM is needed
	t.Setenv("GPUPILOT_FAKE_DCGM", writeFile(t, "dcgm", "gpus 1\ngpu * gpm_gr 0.5\n"))
	url, _, stop := start(t, "--nvml-library", gputest.Library(t, "libnvidia-ml-fake.so"), "--dcgm-library", gputest.Library(t, "libdcgm-fake.so"), "-c", "50", "-n")
	defer stop()
	page := func(wants ...string) func() bool {
		return func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range wants {
				if without, not := strings.CutPrefix(w, "!"); strings.Contains(body, without) == not {
					return false
				}
			}
			return true
		}
	}
	read := page("\ngpupilot_gpus_released 0\n", "} 63\n", "\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{", "\ngpupilot_backend_up{")
	until(t, read)
	if !open(t, nvml) || !open(t, dcgm) {
		t.Fatalf("before: NVML holds its device: %v, DCGM: %v", open(t, nvml), open(t, dcgm))
	}
	for i := range 2 {
		if i > 0 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			until(t, func() bool { return open(t, nvml) && open(t, dcgm) }) // the last values may be young enough to be shown before
			until(t, read)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool { return !open(t, nvml) && !open(t, dcgm) })
		until(t, page("\ngpupilot_gpus_released 1\n", "!\ngpupilot_backend_up{", "\ngpupilot_gpu_info{"))
		if open(t, nvml) || open(t, dcgm) {
			t.Errorf("released: NVML holds its device: %v, DCGM: %v", open(t, nvml), open(t, dcgm))
		}
	}
}
