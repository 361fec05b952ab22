// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestSelection(t *testing.T) {
	mig := func(index, gi, ci int, uuid, parent string) gpu.Device {
		return gpu.Device{Index: index, UUID: uuid, MIG: &gpu.MIG{ParentUUID: parent, GPUInstance: gi, ComputeInstance: ci}}
	}
	all := []gpu.Device{
		{Index: 0, UUID: "G0"},
		mig(0, 7, -1, "M0a", "G0"), mig(0, 9, 0, "M0b", "G0"), mig(0, 9, 1, "M0c", "G0"),
		{Index: 1, UUID: "G1"},
		{Index: 2, UUID: "G2"},
		mig(2, 1, -1, "M2a", "G2"),
	}
	f := func(sel, want string) {
		t.Helper()
		s, err := ParseSelection(sel)
		if err != nil {
			t.Error(err)
			return
		}
		var got []string
		for _, d := range s.Filter(all) {
			got = append(got, d.UUID)
		}
		if diff := cmp.Diff(strings.Fields(want), got); diff != "" && (want != "" || got != nil) {
			t.Errorf("%s (-want +got):\n%s", sel, diff)
		}
	}
	f("f", "M0a M0b M0c G1 M2a")
	f("g", "G0 G1 G2")
	f("i", "M0a M0b M0c M2a")
	f("g+i", "G0 M0a M0b M0c G1 G2 M2a")
	f("g:0,2", "G0 G2")
	f("g:1-5", "G1 G2")
	f("i:0-1", "M0a M0b M0c")
	f("i:1,16", "M0b M0c M2a")
	f("g:1+i:16", "G1 M2a")
	f("g:9", "")

	for _, bad := range []string{"", "x", "f:0", "f+g", "g:", "g:a", "g:-1", "g:3-1", "g:1-", "g+g", "g:0+i+g", "g:99999999", "G"} {
		if _, err := ParseSelection(bad); err == nil || !strings.Contains(err.Error(), "want f, g, i") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzSelection(f *testing.F) {
	for _, s := range []string{"f", "g", "i:0-3,5", "g:1+i:2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := ParseSelection(in)
		if err != nil {
			return
		}
		if got := s.Filter(gpus(3)); len(got) > 3 {
			t.Errorf("%q selects %d of 3", in, len(got))
		}
		if in == "" {
			t.Error("nothing was accepted as a selection")
		}
	})
}
