// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// A GPU whose instances the agent lists is known for its errors only.
func TestAGPUThatIsNotListed(t *testing.T) {
	h, err := ParseHealth([]byte(pagetest.Sick + "gpupilot_xid_last_seen_timestamp_seconds{uuid=\"GPU-2\",xid=\"79\"} 1800000000\n"))
	if err != nil || len(h.GPUs) != 3 {
		t.Fatal(h, err)
	}
	for i, g := range h.GPUs {
		if g.Unlisted != (i == 2) {
			t.Errorf("%+v", g)
		}
	}
}

// An agent that was asked to release its GPUs says nothing else of their health.
func TestReleased(t *testing.T) {
	h, err := ParseHealth([]byte("gpupilot_gpus_released 1\n"))
	if err != nil || !h.Released || h.BackendDown {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err = ParseHealth([]byte("gpupilot_gpus_released 0\ngpupilot_backend_up 0\n")); err != nil || h.Released || !h.BackendDown {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err = ParseHealth([]byte("gpupilot_gpus_released 0\n")); err == nil {
		t.Error("a page without both is an agent's")
	}
}

// The counts of a node's GPUs; what is not there is unknown, and nonsense does not count.
func TestCountsOfANode(t *testing.T) {
	f := func(page string, want *gpu.GPUCounts) {
		t.Helper()
		h, err := ParseHealth([]byte("gpupilot_backend_up 1\n" + page))
		if err != nil || (h.Counts == nil) != (want == nil) || want != nil && *h.Counts != *want {
			t.Errorf("%s: %+v, %v, want %+v", page, h.Counts, err, want)
		}
	}
	f("", nil)
	f("gpupilot_gpus_by_source{source=\"library\"} 7\ngpupilot_gpus_by_source{source=\"pci\",bound=\"vfio-pci\"} 2\ngpupilot_gpus_by_source{source=\"pci\",bound=\"nvidia\"} 8\n",
		&gpu.GPUCounts{Listed: 7, Bound: 8, Allocatable: -1})
	f("gpupilot_gpus_by_source{source=\"device_plugin\"} 8\n", &gpu.GPUCounts{Listed: -1, Bound: -1, Allocatable: 8})
	f("gpupilot_gpus_by_source{source=\"library\"} -1\ngpupilot_gpus_by_source{source=\"pci\",bound=\"nvidia\"} 1e300\n", nil)
}

// Whatever a page holds, what is made of it has names and no time that is none.
func FuzzParseHealth(f *testing.F) {
	f.Add([]byte(pagetest.Sick))
	f.Add([]byte("gpupilot_backend_up 1\ngpupilot_xid_last_seen_timestamp_seconds{uuid=\"a\",xid=\"1\"} 1e300\ngpupilot_device_up{uuid=\"\"} 0"))
	f.Add([]byte("gpupilot_backend_up NaN\n"))
	f.Add([]byte("gpupilot_backend_up 1\ngpupilot_gpus_by_source{source=\"library\"} 0\ngpupilot_gpus_by_source{source=\"device_plugin\"} 65536\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		h, err := ParseHealth(page)
		if err != nil {
			return
		}
		if c := h.Counts; c.Missing() < 0 || c.Missing() > maxGPUs {
			t.Errorf("%+v", c)
		}
		for _, g := range h.GPUs {
			if g.UUID == "" {
				t.Error("a GPU without a UUID")
			}
			for _, x := range g.XIDs {
				if y := x.Last.UTC().Year(); y < 1970 || y > 9999 {
					t.Errorf("an XID of the year %d", y)
				}
			}
		}
	})
}
