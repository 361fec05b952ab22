// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// A device that is held by a resource claim says which, under dcgm-exporter's
// names, a MIG device's own UUID among them.
func TestClaimLabels(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	owner := gpu.Owner{Namespace: "ml", Pod: "llm-0", Container: "c"}
	whole, mig := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 50}), wholeGPU(1, at, map[gpu.FieldID]float64{gpu.FBUsed: 7})
	owner.Claim = &gpu.Claim{Namespace: "ml", Name: "one", Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-0"}
	whole.Owners = []gpu.Owner{owner}
	owner.Claim = &gpu.Claim{
		Namespace: "ml", Name: "two", Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-1-mig-9",
		MIGProfile: "1g.10gb", MIGUUID: "MIG-1",
	}
	mig.Owners = []gpu.Owner{owner}
	mig.UUID, mig.MIG = "MIG-1", &gpu.MIG{ParentUUID: "GPU-1", Profile: "1g.10gb", GPUInstance: 9}
	page := render(t, Config{Profile: names.Profile48, Collectors: DefaultCollectors(names.Profile48), Kubernetes: true}, snapshot(at, whole, mig), at)
	for _, want := range []string{
		`,container="c",dra_claim_name="one",dra_claim_namespace="ml",dra_device_name="gpu-0",dra_driver_name="gpu.nvidia.com",dra_pool_name="node-1",namespace="ml",pod="llm-0"} 50`,
		`,container="c",dra_claim_name="two",dra_claim_namespace="ml",dra_device_name="gpu-1-mig-9",dra_driver_name="gpu.nvidia.com",dra_mig_device_uuid="MIG-1",dra_mig_profile="1g.10gb",dra_pool_name="node-1",namespace="ml",pod="llm-0"} 7`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in:\n%s", want, page)
		}
	}
}

// A device that several containers hold by claims has its series once for each, as
// with dcgm-exporter 4.8.2: by container, with its first claim, and without those
// whom a device plugin gave it. Nobody has two series with the same labels.
func TestClaimSharers(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	d := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 50})
	hold := func(pod, container, claim, share string) gpu.Allocation {
		return gpu.Allocation{DeviceID: d.UUID + share, Owner: gpu.Owner{Namespace: "ml", Pod: pod, Container: container, Claim: &gpu.Claim{
			Namespace: "ml", Name: claim, Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-0",
		}}}
	}
	s := snapshot(at, d)
	gpu.Attribute(s.Devices, []gpu.Allocation{
		hold("q", "c", "shared", ""), hold("p", "d", "shared", ""), hold("p", "c", "z", "::1"), hold("p", "c", "shared", "::0"),
		{DeviceID: d.UUID, Owner: gpu.Owner{Namespace: "ml", Pod: "plugin", Container: "c"}},
	})
	page := render(t, Config{Profile: names.Profile48, Collectors: DefaultCollectors(names.Profile48), Kubernetes: true, Further: true}, s, at)
	var got []string
	for l := range strings.SplitSeq(page, "\n") {
		if _, labels, ok := strings.Cut(l, "DCGM_FI_DEV_GPU_UTIL{"); ok && !strings.HasPrefix(l, "#") {
			_, labels, _ = strings.Cut(labels, `,container=`)
			got = append(got, labels)
		}
	}
	want := []string{
		`"c",dra_claim_name="shared",dra_claim_namespace="ml",dra_device_name="gpu-0",dra_driver_name="gpu.nvidia.com",dra_pool_name="node-1",namespace="ml",pod="p"} 50`,
		`"d",dra_claim_name="shared",dra_claim_namespace="ml",dra_device_name="gpu-0",dra_driver_name="gpu.nvidia.com",dra_pool_name="node-1",namespace="ml",pod="p"} 50`,
		`"c",dra_claim_name="shared",dra_claim_namespace="ml",dra_device_name="gpu-0",dra_driver_name="gpu.nvidia.com",dra_pool_name="node-1",namespace="ml",pod="q"} 50`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n := strings.Count(page, "\ngpupilot_gpu_allocation_info{"); n != 5 {
		t.Errorf("%d allocations", n)
	}
}

// Who claims a device with thousands of containers costs the page no more than 256
// copies of that device's series.
func TestTooManyClaimants(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	d := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUUtil: 50})
	var allocs []gpu.Allocation
	for i := range 3000 {
		allocs = append(allocs, gpu.Allocation{DeviceID: d.UUID, Owner: gpu.Owner{
			Namespace: "ml", Pod: "p", Container: fmt.Sprintf("c-%04d", i), Claim: &gpu.Claim{Namespace: "ml", Name: "shared"},
		}})
	}
	s := snapshot(at, d, wholeGPU(1, at, map[gpu.FieldID]float64{gpu.GPUUtil: 51}))
	gpu.Attribute(s.Devices, allocs)
	page := render(t, Config{Profile: names.Profile48, Collectors: DefaultCollectors(names.Profile48), Kubernetes: true, Further: true}, s, at)
	if n := strings.Count(page, "\nDCGM_FI_DEV_GPU_UTIL{"); n != maxClaimants+1 {
		t.Errorf("%d series", n)
	}
	if !strings.Contains(page, `gpupilot_series_dropped_total{reason="claimant"} 2744`) {
		t.Error("what was left out is not counted")
	}
}
