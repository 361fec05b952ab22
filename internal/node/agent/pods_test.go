// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestEndedPodsHoldNothing(t *testing.T) {
	allocs := []gpu.Allocation{
		{DeviceID: "GPU-0", Owner: gpu.Owner{Namespace: "n", Pod: "done"}},
		{DeviceID: "GPU-1", Owner: gpu.Owner{Namespace: "n", Pod: "runs"}},
	}
	runs := map[gpu.PodName]gpu.Pod{{Namespace: "n", Name: "runs"}: {}}
	f := func(s gpu.Snapshot, want []gpu.Allocation) {
		t.Helper()
		if diff := cmp.Diff(want, living(allocs, &s)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	f(gpu.Snapshot{}, allocs) // nobody asks
	f(gpu.Snapshot{Pods: runs}, allocs[1:])
	f(gpu.Snapshot{Pods: runs, PodsErr: errors.New("away")}, allocs) // nobody knows
	f(gpu.Snapshot{Pods: map[gpu.PodName]gpu.Pod{}}, []gpu.Allocation{})
}

// A node's name that is wrong shows in the log, once.
func TestStrangersAreLogged(t *testing.T) {
	var log bytes.Buffer
	l := newLoop(New(Config{Node: "n1"}, Deps{Log: slog.New(slog.NewTextHandler(&log, nil))}))
	for _, none := range []bool{false, true, true, false, true} {
		l.logStrangers(none)
	}
	if n := strings.Count(log.String(), "NODE_NAME is wrong"); n != 2 || !strings.Contains(log.String(), "node=n1") {
		t.Errorf("said %d times:\n%s", n, &log)
	}
}

func TestJobsOfDevices(t *testing.T) {
	devices := []gpu.DeviceSnapshot{
		{Device: gpu.Device{Index: 0}},
		{Device: gpu.Device{Index: 1, MIG: &gpu.MIG{GPUInstance: 7}}},
		{Device: gpu.Device{Index: 1, MIG: &gpu.MIG{GPUInstance: 8}}},
	}
	assignJobs(devices, map[string][]string{"0": {"a", "b"}, "1.7": {"c"}, "1": {"d"}})
	var got [][]string
	for _, d := range devices {
		got = append(got, d.Jobs)
	}
	if diff := cmp.Diff([][]string{{"a", "b"}, {"c"}, nil}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A file may name a GPU by UUID. One that names none is counted, and logged once.
func TestJobFilesByUUIDAndOfNoGPU(t *testing.T) {
	var log bytes.Buffer
	jobs := map[string][]string{"0": {"b"}, "GPU-0": {"a", "b"}, "MIG-7": {"c"}, "GPU-9": {"d"}, "00": nil, "0-3": nil, "nvidia2": nil}
	l := newLoop(New(Config{}, Deps{Jobs: func() map[string][]string { return jobs }, Log: slog.New(slog.NewTextHandler(&log, nil))}))
	s := &gpu.Snapshot{}
	l.addJobs(s) // before the first enumeration
	if n := s.UnmatchedJobFiles; n == nil || *n != 0 || log.Len() > 0 {
		t.Fatalf("without devices %v, log:\n%s", n, &log)
	}
	s.Devices = []gpu.DeviceSnapshot{
		{Device: gpu.Device{UUID: "GPU-0"}}, {Device: gpu.Device{Index: 1, UUID: "MIG-7", MIG: &gpu.MIG{GPUInstance: 7}}},
	}
	for range 3 {
		l.addJobs(s)
	}
	if diff := cmp.Diff([][]string{{"a", "b"}, {"c"}}, [][]string{s.Devices[0].Jobs, s.Devices[1].Jobs}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := *s.UnmatchedJobFiles; n != 4 {
		t.Errorf("%d files of no GPU, want 4", n)
	}
	for _, name := range []string{"GPU-9", " 00 ", "0-3", "nvidia2"} {
		if strings.Count(log.String(), name) != 1 {
			t.Errorf("%s is not named once:\n%s", name, &log)
		}
	}
	jobs = map[string][]string{"nvidia2": nil, "x": nil}
	l.addJobs(s)
	if n := *s.UnmatchedJobFiles; n != 2 || s.Devices[0].Jobs != nil || strings.Count(log.String(), "nvidia2") != 1 || !strings.Contains(log.String(), "files=[x] count=1") {
		t.Errorf("%d, log:\n%s", n, &log)
	}
}

// Other fields are read from the next tick on.
func TestSetFields(t *testing.T) {
	a := New(Config{Fields: gpu.SetOf(gpu.GPUUtil)}, Deps{})
	a.SetFields(gpu.SetOf(gpu.FBUsed))
	if got := *a.fields.Load(); got != gpu.SetOf(gpu.FBUsed) {
		t.Errorf("fields %v", got)
	}
}

func TestProfiles(t *testing.T) {
	a := New(Config{Pprof: true}, Deps{Metrics: http.NotFoundHandler()})
	h := a.Handler()
	for path, want := range map[string]int{
		"": http.StatusOK, "cmdline": http.StatusOK, "goroutine?debug=1": http.StatusOK, "heap": http.StatusOK,
		"profile?seconds=1": http.StatusOK, "none": http.StatusNotFound,
	} {
		if code, body := fetch(t, h, "/debug/pprof/"+path); code != want || body == "" {
			t.Errorf("%s: %d, %d bytes", path, code, len(body))
		}
	}
}
