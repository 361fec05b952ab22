// SPDX-License-Identifier: Apache-2.0

package podres

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// full has every field of the API.
func full() *podresources.ListPodResourcesResponse {
	numa := &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{
		{
			Name: "train-0", Namespace: "ml", CpuIds: []int64{3, 1 << 40}, Memory: []*podresources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30}},
			Containers: []*podresources.ContainerResources{{
				Name: "main", CpuIds: []int64{3}, Memory: []*podresources.ContainerMemory{{MemoryType: "hugepages-1Gi", Size: 7, Topology: numa}},
				Devices: []*podresources.ContainerDevices{
					{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a", "GPU-b"}, Topology: numa}, {ResourceName: "example.com/nic"},
				},
				DynamicResources: []*podresources.DynamicResource{{
					ClaimName: "c", ClaimNamespace: "ml",
					ClaimResources: []*podresources.ClaimResource{{DriverName: "d", PoolName: "p", DeviceName: "gpu-0", ShareId: new(string), CdiDevices: []*podresources.CDIDevice{{Name: "k"}}}},
				}},
			}, {Name: "sidecar"}},
		},
		{Name: "web"},
	}}
}

// ours is the API's own message as far as we read it.
func ours(m *podresources.ListPodResourcesResponse) (out []podResources) {
	for _, p := range m.PodResources {
		q := podResources{name: p.Name, namespace: p.Namespace}
		for _, c := range p.Containers {
			k := containerResources{name: c.Name}
			for _, d := range c.Devices {
				k.devices = append(k.devices, containerDevices{resource: d.ResourceName, ids: d.DeviceIds})
			}
			for _, r := range c.DynamicResources {
				x := claim{name: r.ClaimName, namespace: r.ClaimNamespace}
				for _, d := range r.ClaimResources {
					x.devices = append(x.devices, claimDevice{d.DriverName, d.PoolName, d.DeviceName, d.GetShareId()})
				}
				k.claims = append(k.claims, x)
			}
			q.containers = append(q.containers, k)
		}
		out = append(out, q)
	}
	return out
}

// What the API's own code understands, we understand alike.
func FuzzParseList(f *testing.F) {
	whole, err := proto.Marshal(full())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{})
	f.Add([]byte{0x0a, 0x04, 0x0a, 0x00, 0x12, 0x00}) // names that are empty
	f.Add([]byte{0x0b, 0x0c})                         // a group
	f.Add([]byte{0x08, 0x01, 0x0a, 0x00})             // the right number, another type
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseList(b)
		var theirs podresources.ListPodResourcesResponse
		if proto.Unmarshal(b, &theirs) != nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ours(&theirs), got, cmp.AllowUnexported(podResources{}, containerResources{}, containerDevices{}, claim{}, claimDevice{})); diff != "" {
			t.Errorf("(-theirs +ours):\n%s", diff)
		}
	})
}

// Likewise of what device plugins offer.
func FuzzParseAllocatable(f *testing.F) {
	numa := &podresources.TopologyInfo{Nodes: []*podresources.NUMANode{{ID: 1}}}
	whole, err := proto.Marshal(&podresources.AllocatableResourcesResponse{
		Devices: []*podresources.ContainerDevices{
			{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-a", "GPU-b::1"}, Topology: numa}, {ResourceName: "example.com/nic"},
		},
		CpuIds: []int64{3, 1 << 40}, Memory: []*podresources.ContainerMemory{{MemoryType: "memory", Size: 1 << 30}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{0x0b, 0x0c})
	f.Add([]byte{0x08, 0x01, 0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseAllocatable(b)
		var theirs podresources.AllocatableResourcesResponse
		if proto.Unmarshal(b, &theirs) != nil {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []containerDevices
		for _, d := range theirs.Devices {
			want = append(want, containerDevices{resource: d.ResourceName, ids: d.DeviceIds})
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(containerDevices{})); diff != "" {
			t.Errorf("(-theirs +ours):\n%s", diff)
		}
	})
}
