// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestTopology(t *testing.T) {
	f := newFake(t)
	f.Put("links", "links 12")
	r, d := reader(t, Config{})
	want := gpu.Topology{
		GPUs: []gpu.GPUPlace{
			{UUID: d[0].UUID, CPUs: "0-55", NVLinks: 12},
			{UUID: d[1].UUID, CPUs: "0-55", NVLinks: 12},
			{UUID: d[2].UUID, CPUs: "56-111", NVLinks: 12},
		},
		Pairs: []gpu.GPUPair{
			{A: d[0].UUID, B: d[1].UUID, Path: gpu.SameNUMANode, NVLinks: 12},
			{A: d[0].UUID, B: d[2].UUID, Path: gpu.AcrossNUMA, NVLinks: 12},
			{A: d[1].UUID, B: d[2].UUID, Path: gpu.AcrossNUMA, NVLinks: 12},
		},
	}
	for _, version := range []string{"2", "1"} { // older releases of DCGM know only the first
		f.Put("topology", "topology "+version)
		got, err := r.Topology()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("version %s: error %v (-want +got):\n%s", version, err, diff)
		}
	}
	f.Put("topology", "topology 0")
	got, err := r.Topology()
	if err == nil || len(got.GPUs) != 3 || got.GPUs[0].CPUs != "" || got.Pairs[0].NVLinks != -1 || got.Pairs[0].Path != gpu.UnknownPath {
		t.Errorf("without an answer: %+v, %v", got, err)
	}
	f.Put("engine", "engine lost")
	if got, err := r.Topology(); !errors.Is(err, gpu.ErrNoDriver) || len(got.GPUs) != 0 {
		t.Errorf("without an engine: %+v, %v", got, err)
	}
}
