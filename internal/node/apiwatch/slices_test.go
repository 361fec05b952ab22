// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

const driver = "gpu.nvidia.com"

// slice is a ResourceSlice of node n1 with these devices.
func slice(name string, generation int, devices ...string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"9"},"spec":{"driver":%q,"nodeName":"n1","pool":{"name":"n1","generation":%d,"resourceSliceCount":1},"devices":[%s]}}`,
		name, driver, generation, strings.Join(devices, ","))
}

func wholeGPU(name, uuid string) string {
	return fmt.Sprintf(`{"name":%q,"attributes":{"type":{"string":"gpu"},"uuid":{"string":%q},"minor":{"int":0},"driverVersion":{"version":"580.0.0"}},"capacity":{"memory":{"value":"80Gi"}}}`, name, uuid)
}

func migDevice(name, uuid string) string {
	return fmt.Sprintf(`{"name":%q,"attributes":{"%s/type":{"string":"mig"},"%s/uuid":{"string":%q},"%s/profile":{"string":"1g.10gb"},"parentUUID":{"string":"GPU-0"}}}`,
		name, driver, driver, uuid, driver)
}

func claimOf(device, share string) gpu.Allocation {
	return gpu.Allocation{Resource: driver, DeviceID: "n1/" + device, Owner: gpu.Owner{
		Namespace: "ml", Pod: "p", Container: "c", Replica: share,
		Claim: &gpu.Claim{Namespace: "ml", Name: "claim", Driver: driver, Pool: "n1", Device: device},
	}}
}

func TestSlices(t *testing.T) {
	s := &server{pages: []string{list("5", "", slice("a", 1, wholeGPU("gpu-0", "GPU-0"), migDevice("gpu-0-mig-1", "MIG-1")))}}
	slices := NewSlices(start(t, s), driver, GivenNode("n1"), slog.New(slog.DiscardHandler))
	ids := func(allocs ...gpu.Allocation) string {
		var out []string
		for _, a := range slices.Resolve(allocs) {
			out = append(out, a.DeviceID)
		}
		return strings.Join(out, " ")
	}
	all := func() string { return ids(claimOf("gpu-0", ""), claimOf("gpu-0-mig-1", ""), claimOf("gpu-1", "s")) }
	if got := all(); got != "n1/gpu-0 n1/gpu-0-mig-1 n1/gpu-1" {
		t.Errorf("before anything is known: %s", got)
	}
	run(t, slices)
	until(t, func() bool { return all() == "GPU-0 MIG-1 n1/gpu-1" })
	s.set(func() {
		if q := s.queries[0]; !strings.HasPrefix(q, "/apis/resource.k8s.io/v1/resourceslices?") || !strings.Contains(q, "spec.driver%3Dgpu.nvidia.com%2Cspec.nodeName%3Dn1") {
			t.Errorf("asked for %s", q)
		}
	})

	// A device plugin's allocations stay as they are; a MIG device's claim says so.
	got := slices.Resolve([]gpu.Allocation{{DeviceID: "GPU-9", Owner: gpu.Owner{Pod: "q"}}, claimOf("gpu-0-mig-1", "")})
	want := &gpu.Claim{Namespace: "ml", Name: "claim", Driver: driver, Pool: "n1", Device: "gpu-0-mig-1", MIGProfile: "1g.10gb", MIGUUID: "MIG-1", ParentUUID: "GPU-0"}
	if diff := cmp.Diff(want, got[1].Owner.Claim); diff != "" || got[0].DeviceID != "GPU-9" {
		t.Errorf("%+v: %s", got[0], diff)
	}
	again := slices.Resolve([]gpu.Allocation{claimOf("gpu-0-mig-1", "")})
	if again[0].Owner != got[1].Owner {
		t.Error("the same owner compares as another one at the next answer")
	}

	// A driver that publishes anew: the newest generation counts, whole.
	s.events <- `{"type":"ADDED","object":` + slice("b", 2, wholeGPU("gpu-0", "GPU-0"), wholeGPU("gpu-1", "GPU-1")) + `}`
	until(t, func() bool { return all() == "GPU-0 n1/gpu-0-mig-1 GPU-1::s" })
	s.events <- `{"type":"DELETED","object":` + slice("b", 2) + `}`
	until(t, func() bool { return all() == "GPU-0 MIG-1 n1/gpu-1" })
	s.events <- `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"12"}}}`
	s.set(func() { s.refuse = 403 })
	close(s.events)
	until(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.queries) > 2 })
	if got := all(); got != "GPU-0 MIG-1 n1/gpu-1" {
		t.Errorf("what was told last does not stand: %s", got)
	}
}

// What a slice holds of other types is no reason to read none of it.
func TestSliceOfOtherTypes(t *testing.T) {
	s := &server{pages: []string{list("5", "", slice("a", 1, `{"name":"x"}`, `{"name":"y","attributes":{"uuid":{"int":7}}}`, wholeGPU("z", "GPU-z")))}}
	slices := NewSlices(start(t, s), driver, GivenNode("n1"), slog.New(slog.DiscardHandler))
	run(t, slices)
	until(t, func() bool { return slices.Resolve([]gpu.Allocation{claimOf("z", "")})[0].DeviceID == "GPU-z" })
}

// run follows the slices until the test ends.
func run(t *testing.T, s *Slices) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(t.Context())
	}()
	t.Cleanup(func() { <-done })
}
