// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func all(*gpu.Part) bool { return true }

// partLines describe parts and the values of some fields.
func partLines(t *testing.T, r *Reader, keep func(*gpu.Part) bool, ids ...gpu.FieldID) []string {
	t.Helper()
	parts, err := r.ReadParts(gpu.SetOf(ids...), keep)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range parts {
		line := fmt.Sprintf("%s %d", p.Kind, p.ID)
		switch {
		case p.GPU != nil:
			line += fmt.Sprintf(" of GPU %d", p.GPU.Index)
		case p.Kind == gpu.NVLink || p.Kind == gpu.CPUCore:
			line += fmt.Sprintf(" of %d", p.Parent)
		}
		if p.Serial != "" {
			line += " " + p.Serial
		}
		for _, id := range ids {
			if x, ok := p.Values.Get(id); ok {
				line += fmt.Sprintf(" %d=%v", id, x)
			}
			if s, ok := p.Values.GetLabel(id); ok {
				line += fmt.Sprintf(" %d=%s", id, s)
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// Each part has its own values, and a switch those of its links as well.
func TestParts(t *testing.T) {
	f := newFake(t)
	f.Put("switches", "switches 2")
	f.Put("links", "links 2")
	f.Put("cpus", "cpus 2 2")
	f.Put("gpus", "gpus 1")
	f.Put("a", "part nvswitch 1 858 41")
	f.Put("b", "part nvlink switch1:1 787 7")
	f.Put("c", "part nvlink gpu0:0 787 3")
	f.Put("d", "part cpucore 3 1100 0.5")
	f.Put("e", "part cpu 1 1130 210.5")
	f.Put("f", "part cpu 0 1130 nan")
	r, _ := reader(t, Config{})
	got := partLines(t, r, all, gpu.SwitchTemp, gpu.SwitchLinkCRC, gpu.CPUUtil, gpu.CPUPower, gpu.CPUVendor, gpu.GPUUtil)
	want := []string{
		"nvswitch 0 858=0 787=0", "nvswitch 1 858=41 787=0",
		"nvlink 0 of GPU 0 787=3", "nvlink 1 of GPU 0 787=0",
		"nvlink 0 of 0 787=0", "nvlink 1 of 0 787=0", "nvlink 0 of 1 787=0", "nvlink 1 of 1 787=7",
		"cpu 0 0x6b000000 1100=0 1140=NVIDIA", "cpu 1 0x6b000001 1100=0 1130=210.5 1140=NVIDIA",
		"cpucore 0 of 0 1100=0", "cpucore 1 of 0 1100=0", "cpucore 2 of 1 1100=0", "cpucore 3 of 1 1100=0.5",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parts (-want +got):\n%s", diff)
	}
}

// The last error of a switch is 0 before the first one, asked for with others and alone.
func TestSwitchErrorsBeginAtZero(t *testing.T) {
	f := newFake(t)
	f.Put("switches", "switches 1")
	f.Put("fatal", "part nvswitch 0 856 nan")
	f.Put("other", "part nvswitch 0 858 41")
	r, _ := reader(t, Config{})
	for range 2 {
		if diff := cmp.Diff([]string{"nvswitch 0 856=0"}, partLines(t, r, all, gpu.SwitchFatal)); diff != "" {
			t.Errorf("alone (-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"nvswitch 0 856=0 858=41"}, partLines(t, r, all, gpu.SwitchFatal, gpu.SwitchTemp)); diff != "" {
		t.Errorf("with others (-want +got):\n%s", diff)
	}
	f.Put("fatal", "part nvswitch 0 856 20034")
	if diff := cmp.Diff([]string{"nvswitch 0 856=20034"}, partLines(t, r, all, gpu.SwitchFatal)); diff != "" {
		t.Errorf("after an error (-want +got):\n%s", diff)
	}
}

// What is not asked for is neither watched nor read, and nothing is watched
// twice.
func TestPartsWatches(t *testing.T) {
	f := newFake(t)
	f.Put("cpus", "cpus 1 4")
	f.Put("switches", "switches 1")
	r, _ := reader(t, Config{})
	keep := func(p *gpu.Part) bool { return p.Kind != gpu.CPUCore || p.ID == 2 }
	first := logged(t, f, func() { partLines(t, r, keep, gpu.CPUUtil, gpu.CPUPower) })
	if n := strings.Count(first, "- watch"); n != 2 || !strings.Contains(first, "- watch fields=2 first=1100") || !strings.Contains(first, "- watch fields=1 first=1100") {
		t.Errorf("the first read:\n%s", first)
	}
	if second := logged(t, f, func() { partLines(t, r, keep, gpu.CPUUtil, gpu.CPUPower) }); second != "" {
		t.Errorf("the second read:\n%s", second)
	}
	if got := partLines(t, r, keep, gpu.CPUUtil); len(got) != 2 {
		t.Errorf("parts %v", got)
	}
}

// A node without parts has none; a host engine that is gone is an error, and
// its parts are there again with it.
func TestPartsComeAndGo(t *testing.T) {
	f := newFake(t)
	r, _ := reader(t, Config{})
	if got := partLines(t, r, all, gpu.SwitchTemp, gpu.CPUUtil); got != nil {
		t.Errorf("parts %v", got)
	}
	f.Put("engine", "engine lost")
	if _, err := r.ReadParts(gpu.SetOf(gpu.CPUUtil), all); err != nil && !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("ReadParts without an engine: %v", err)
	}
	if _, err := r.Devices(); !errors.Is(err, gpu.ErrNoDriver) {
		t.Fatal(err)
	}
	if _, err := r.ReadParts(gpu.SetOf(gpu.CPUUtil), all); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("ReadParts without an engine: %v", err)
	}
	f.Put("engine", "")
	f.Put("cpus", "cpus 1 1")
	if _, err := r.Devices(); err != nil {
		t.Fatal(err)
	}
	if got := partLines(t, r, all, gpu.CPUUtil); len(got) != 2 {
		t.Errorf("parts %v", got)
	}
}

// How GPUs reach one another over NVLink.
func TestPeers(t *testing.T) {
	f := newFake(t)
	f.Put("p2p", "p2p 1 2 3")
	r, devices := reader(t, Config{})
	for i, want := range [][]gpu.Peer{{{Index: 1}, {Index: 2}}, {{Index: 0}, {Index: 2, Status: 3}}, {{Index: 0}, {Index: 1}}} {
		l, err := r.Links(devices[i].UUID)
		if diff := cmp.Diff(gpu.Links{Peers: want}, l); err != nil || diff != "" {
			t.Errorf("GPU %d: %v (-want +got):\n%s", i, err, diff)
		}
	}
	f.Put("engine", "engine lost")
	if _, err := r.Links(devices[0].UUID); !errors.Is(err, gpu.ErrNoDriver) {
		t.Errorf("without an engine: %v", err)
	}
}
