// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFaults(t *testing.T) {
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	f := func(name string, h Health, want ...string) {
		t.Helper()
		h.UUID = "GPU-1"
		var got []string
		for _, x := range h.Faults(now) {
			got = append(got, x.Reason+" "+x.Message)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %q, want %q", name, got, want)
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: %q, want %q", name, got[i], want[i])
			}
		}
	}
	xid := func(code uint64, ago time.Duration) XIDCount { return XIDCount{Code: code, Last: now.Add(-ago)} }
	f("well", Health{})
	f("an application's errors", Health{XIDs: []XIDCount{xid(13, 0), xid(31, 0), xid(43, 0), xid(45, 0), xid(94, 0), xid(0, 0)}})
	f("off the bus", Health{Down: true, XIDs: []XIDCount{xid(79, time.Minute)}}, "GPULost GPU-1 cannot", "XIDError GPU-1: XID 79 at 2026-01-01T23:59:00Z, it fell off the bus")
	f("remapping", Health{RowRemapFailure: true, XIDs: []XIDCount{xid(64, 0)}}, "RowRemapFailure", "XID 64")
	f("long ago", Health{XIDs: []XIDCount{xid(79, 25*time.Hour)}})
	f("NVLink 5", Health{XIDs: []XIDCount{xid(143, 0), xid(144, 0), xid(150, 0), xid(151, 0)}}, "XID 143", "XID 144", "XID 150")
	blind := NodeHealth{BackendDown: true, GPUs: []Health{{UUID: "GPU-1", Down: true}}}
	if got := blind.Faults(now); len(got) != 1 || got[0].Reason != FaultLost {
		t.Errorf("blind: %v", got)
	}
}

func TestIsLost(t *testing.T) {
	f := func(n NodeHealth, want ...string) {
		t.Helper()
		var messages []string
		for _, x := range n.Faults(time.Now()) {
			messages = append(messages, x.Message)
		}
		faults := FaultLost + ": " + strings.Join(messages, "; ")
		for _, uuid := range []string{"GPU-1", "GPU-11", "GPU-11/gi1", "GPU-2", "1", ""} {
			if got := IsLost(faults, uuid); got != slices.Contains(want, uuid) {
				t.Errorf("%q: %s lost: %v", faults, uuid, got)
			}
		}
	}
	f(NodeHealth{GPUs: []Health{{UUID: "GPU-1"}, {UUID: "GPU-11", RowRemapFailure: true}}})
	f(NodeHealth{GPUs: []Health{{UUID: "GPU-11", Down: true}, {UUID: "GPU-2", RowRemapFailure: true}}}, "GPU-11", "GPU-11/gi1")
	f(NodeHealth{GPUs: []Health{{UUID: "GPU-2", RowRemapFailure: true}, {UUID: "GPU-1", Down: true}}}, "GPU-1")
	f(NodeHealth{BackendDown: true}, "GPU-1", "GPU-11", "GPU-11/gi1", "GPU-2", "1", "")
	if IsLost("", "GPU-1") || IsLost("GPULost: GPU 5", "GPU-5") {
		t.Error("lost, of a condition that does not say so")
	}
}
