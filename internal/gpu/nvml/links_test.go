// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Links have their errors, by type; those that were up and are not are down;
// GPUs reach one another where both have links.
func TestLinks(t *testing.T) {
	f := newFake(t)
	f.Put("gpus", "gpus 3")
	f.Put("links", "gpu * nvlinks 2")
	f.Put("lonely", "gpu 2 nvlinks 0")
	f.Put("replay", "gpu 1 nvlink_replay 7")
	r, devices := reader(t, f)
	l, err := r.Links(devices[1].UUID)
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Links{Peers: []gpu.Peer{{Index: 0, Status: gpu.P2POK}, {Index: 2, Status: 5}}}
	if f.old { // it has no functions of links
		if diff := cmp.Diff(want, l); diff != "" {
			t.Errorf("links (-want +got):\n%s", diff)
		}
		return
	}
	want.Active = 2
	for link := range 2 {
		for _, typ := range []string{"crc_flit", "crc_data", "replay", "recovery"} {
			e := gpu.LinkError{Link: link, Type: typ}
			if link == 0 && typ == "replay" {
				e.Count = 7
			}
			want.Errors = append(want.Errors, e)
		}
	}
	if diff := cmp.Diff(want, l); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	f.Put("links", "gpu * nvlinks 1")
	if l, err = r.Links(devices[1].UUID); err != nil || !cmp.Equal(l.Down, []int{1}) || len(l.Errors) != 4 {
		t.Errorf("with a link down: %+v, %v", l, err)
	}
	if l, err = r.Links(devices[2].UUID); err != nil || l.Down != nil || l.Errors != nil {
		t.Errorf("without links: %+v, %v", l, err)
	}
	if _, err := r.Links("GPU-none"); !errors.Is(err, gpu.ErrUnknownDevice) {
		t.Errorf("no GPU: %v", err)
	}
}
