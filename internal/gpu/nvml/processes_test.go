// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestMIGProcesses(t *testing.T) {
	f := newFake(t)
	f.Put("mig", "gpu 0 mig 1g.18gb 2")
	f.Put("a", "gpu 0 instance 0 process 10 100 50")
	f.Put("b", "gpu 0 instance 1 process 20 200 0 mps")
	r, devices := reader(t, f)
	want := [][]gpu.Process{
		nil, // the GPU itself has none of its own
		{{PID: 10, Type: gpu.Compute, Memory: gpu.Read(100 << 20)}},
		{{PID: 20, Type: gpu.MPSClient, Memory: gpu.Read(200 << 20)}},
	}
	for i, w := range want {
		got, err := r.Processes(devices[i].UUID)
		if err != nil || got.Times || !slices.Equal(got.List, w) {
			t.Errorf("device %d: %+v, %v; want %+v without utilisation", i, got, err, w)
		}
	}
}

// What cannot be listed is an error, not an empty list.
func TestProcessesThatAreNotTold(t *testing.T) {
	f := newFake(t)
	f.Put("p", "gpu * process 10 100 50")
	f.Put("fail", "gpu 0 fail GetRunningProcesses NO_PERMISSION")
	f.Put("fail2", "gpu 1 fail GetProcessUtilization NO_PERMISSION")
	r, devices := reader(t, f)
	for range 2 {
		if got, err := r.Processes(devices[0].UUID); err == nil || !strings.Contains(err.Error(), "permission") {
			t.Errorf("%+v, %v", got, err)
		}
		got, err := r.Processes(devices[1].UUID)
		if err != nil || got.Times || len(got.List) != 1 || got.List[0].Utilization.OK {
			t.Errorf("without utilisation: %+v, %v", got, err)
		}
	}
}

// Drivers whose entries are longer than nvml.h's would write beyond our memory.
func TestDriversThatWriteTooMuch(t *testing.T) {
	for v, want := range map[string]bool{
		"535.43.02": true, "535.54.03": true, "535.86.05": true, "535.98": false, "535.104.05": false, "535.183.01": false,
		"530.41.03": false, "510.39.01": false, "590.48.01": false, "535": false, "": false, "535.x": false,
	} {
		if writesTooMuch(v) != want {
			t.Errorf("%q: %v, want %v", v, !want, want)
		}
	}
	f := newFake(t)
	f.Put("driver", "driver-version 535.86.05")
	f.Put("p", "gpu * process 10 100 50")
	r, devices := reader(t, f)
	if got, err := r.Processes(devices[0].UUID); err == nil || got.List != nil {
		t.Errorf("%+v, %v; want an error", got, err)
	}
}

func TestTakingSamples(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	const second = 1_000_000 // of the driver's clock
	var s processState
	f := func(after time.Duration, want map[uint32]float64, samples ...nvml.ProcessUtilizationSample) {
		t.Helper()
		s.take(samples, start.Add(after))
		got := map[uint32]float64{}
		for pid, x := range s.shares {
			got[pid] = x.part
		}
		if !maps.Equal(got, want) {
			t.Errorf("after %v: %v, want %v", after, got, want)
		}
	}
	sample := func(pid uint32, at uint64, util uint32) nvml.ProcessUtilizationSample {
		return nvml.ProcessUtilizationSample{Pid: pid, TimeStamp: at, SmUtil: util}
	}
	f(0, map[uint32]float64{1: .5, 2: .25}, sample(1, 7*second, 50), sample(2, 7*second, 25))
	// Leftovers in the driver's list.
	f(100*time.Millisecond, map[uint32]float64{1: .5, 2: .25}, sample(0, 8*second, 90), sample(1, 6*second, 90), sample(2, 8*second, 101), sample(3, 0, 1))
	// One goes on, the other has stopped: its last sample stands a little while.
	f(time.Second, map[uint32]float64{1: .75, 2: .25}, sample(1, 8*second, 75))
	f(2*time.Second, map[uint32]float64{1: .5}, sample(1, 8.5*second, 40), sample(1, 9*second, 60))
	// Nobody does anything.
	f(3*time.Second, map[uint32]float64{1: .5})
	f(4*time.Second, map[uint32]float64{})
}

// The samples of before the first question say nothing of now.
func TestOldSamples(t *testing.T) {
	f := newFake(t)
	f.Put("p", "gpu 0 process 10 100 50")
	r, devices := reader(t, f)
	if got, err := r.Processes(devices[0].UUID); err != nil || got.Times || len(got.List) != 1 {
		t.Errorf("the first list: %+v, %v; want no utilisation", got, err)
	}
	until(t, "a utilisation", func() bool {
		got, err := r.Processes(devices[0].UUID)
		return err == nil && got.Times && got.List[0].Utilization == gpu.Read(.5)
	})
}
