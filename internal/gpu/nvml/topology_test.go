// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestTopology(t *testing.T) {
	f := newFake(t)
	f.Put("links", "gpu 1 nvlinks 12")
	f.Put("none", "gpu 2 unsupported nvlinks")
	r, d := reader(t, f)
	got, err := r.Topology()
	want := gpu.Topology{
		GPUs: []gpu.GPUPlace{
			{UUID: d[0].UUID, CPUs: "0-55", NUMANodes: "0", NVLinks: 18},
			{UUID: d[1].UUID, CPUs: "0-55", NUMANodes: "0", NVLinks: 12},
			{UUID: d[2].UUID, CPUs: "56-111", NUMANodes: "1", NVLinks: 0},
		},
		Pairs: []gpu.GPUPair{
			{A: d[0].UUID, B: d[1].UUID, Path: gpu.SameNUMANode, NVLinks: 12},
			{A: d[0].UUID, B: d[2].UUID, Path: gpu.AcrossNUMA},
			{A: d[1].UUID, B: d[2].UUID, Path: gpu.AcrossNUMA},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

// NVLinks that take too long cost themselves, not the rest.
func TestSlowLinks(t *testing.T) {
	r, _ := reader(t, newFake(t))
	var whole []*device
	for _, d := range r.Known() {
		whole = append(whole, d)
	}
	ends, err := whole[0].ses.linksOf(whole, time.Now().Add(-time.Second))
	if err == nil || len(ends) != len(whole) || ends[0].total() != -1 || ends[0].to(&ends[1], "x") != -1 {
		t.Errorf("%+v, %v", ends, err)
	}
}

// Links that lead from GPU to GPU count beside those through switches.
func TestDirectLinks(t *testing.T) {
	a := linkEnds{known: true, gpus: map[string]int{"B": 4, "C": 2}}
	b := linkEnds{known: true, gpus: map[string]int{"A": 4}, switches: 2}
	if a.total() != 6 || a.to(&b, "B") != 4 || a.to(&b, "D") != 0 || b.total() != 6 {
		t.Errorf("%d %d %d", a.total(), a.to(&b, "B"), a.to(&b, "D"))
	}
}

func TestRanges(t *testing.T) {
	for want, set := range map[string][]uint{
		"": {0, 0}, "0": {1}, "0-3,8": {0x10f}, "63-64": {1 << 63, 1}, "0-127": {^uint(0), ^uint(0)}, "1,3,65": {0b1010, 0b10},
	} {
		if got := gpu.Ranges(set); got != want {
			t.Errorf("%x: %q, want %q", set, got, want)
		}
	}
}
