// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// linkBudget limits the time for the NVLinks of all GPUs: a GPU has up to 36
// with three calls each, and each call goes to the driver.
const linkBudget = 2 * time.Second

// The limits of CPUs and NUMA nodes that are read.
const (
	mostCPUs  = 4096
	mostNodes = 1024
)

// Topology returns the paths between the GPUs, and from them to the CPUs. If
// reading the NVLinks takes too long, the rest is left out, with an error.
func (r *Reader) Topology() (gpu.Topology, error) {
	var whole []*device
	for _, d := range r.Known() {
		if d.MIG == nil {
			whole = append(whole, d)
		}
	}
	if len(whole) == 0 {
		return gpu.Topology{}, fmt.Errorf("topology: %w", gpu.ErrNoDriver)
	}
	slices.SortFunc(whole, func(a, b *device) int { return a.Index - b.Index })
	ses := whole[0].ses
	if ses.Broken() || !ses.Enter() {
		return gpu.Topology{}, fmt.Errorf("topology: %w (since the devices were enumerated)", gpu.ErrNoDriver)
	}
	defer ses.Leave()
	var t gpu.Topology
	links, err := ses.linksOf(whole, time.Now().Add(linkBudget))
	for i, d := range whole {
		t.GPUs = append(t.GPUs, gpu.GPUPlace{UUID: d.UUID, CPUs: d.nearCPUs(), NUMANodes: d.nearNodes(), NVLinks: links[i].total()})
		for j, e := range whole[i+1:] {
			n := links[i].to(&links[i+1+j], e.PCIBusID)
			t.Pairs = append(t.Pairs, gpu.GPUPair{A: d.UUID, B: e.UUID, Path: d.pathTo(e), NVLinks: n})
		}
	}
	return t, err
}

func (d *device) nearCPUs() string {
	if !d.ses.has("nvmlDeviceGetCpuAffinity") {
		return ""
	}
	set, ret := d.root.GetCpuAffinity(mostCPUs)
	if ret != nvml.SUCCESS {
		return ""
	}
	return gpu.Ranges(set)
}

func (d *device) nearNodes() string {
	if !d.ses.has("nvmlDeviceGetMemoryAffinity") {
		return ""
	}
	set, ret := d.root.GetMemoryAffinity(mostNodes, nvml.AFFINITY_SCOPE_NODE)
	if ret != nvml.SUCCESS {
		return ""
	}
	return gpu.Ranges(set)
}

func (d *device) pathTo(e *device) gpu.PathLevel {
	if !d.ses.has("nvmlDeviceGetTopologyCommonAncestor") {
		return gpu.UnknownPath
	}
	level, ret := d.root.GetTopologyCommonAncestor(e.root)
	if ret != nvml.SUCCESS {
		return gpu.UnknownPath
	}
	return map[nvml.GpuTopologyLevel]gpu.PathLevel{
		nvml.TOPOLOGY_INTERNAL: gpu.SameBoard, nvml.TOPOLOGY_SINGLE: gpu.OneSwitch, nvml.TOPOLOGY_MULTIPLE: gpu.SomeSwitches,
		nvml.TOPOLOGY_HOSTBRIDGE: gpu.HostBridge, nvml.TOPOLOGY_NODE: gpu.SameNUMANode, nvml.TOPOLOGY_SYSTEM: gpu.AcrossNUMA,
	}[level]
}

// linkEnds are the other ends of a GPU's active NVLinks.
type linkEnds struct {
	known    bool
	switches int
	gpus     map[string]int // by PCI bus id
}

func (l *linkEnds) total() int {
	if !l.known {
		return -1
	}
	n := l.switches
	for k := range maps.Values(l.gpus) {
		n += k
	}
	return n
}

// to returns the number of links from one GPU to another: the direct ones, and
// as many as both have to switches.
func (l *linkEnds) to(o *linkEnds, busID string) int {
	if !l.known || !o.known {
		return -1
	}
	return l.gpus[busID] + min(l.switches, o.switches)
}

// linksOf reads the ends of the GPUs' NVLinks until the deadline. Links that
// are unknown then are left out.
func (s *session) linksOf(gpus []*device, deadline time.Time) ([]linkEnds, error) {
	ends := make([]linkEnds, len(gpus))
	if !s.hasAll("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2") {
		return ends, nil
	}
	for i, d := range gpus {
		l := linkEnds{known: true, gpus: map[string]int{}}
		for k := range nvml.NVLINK_MAX_LINKS {
			if time.Now().After(deadline) {
				return ends, errors.New("NVLinks take too long: they are left out")
			}
			if !l.follow(d, k) {
				break
			}
		}
		ends[i] = l
	}
	return ends, nil
}

// follow adds link k of a GPU, and reports whether there may be more. A GPU
// refuses the number of a link that it does not have.
func (l *linkEnds) follow(d *device, k int) bool {
	active, ret := d.root.GetNvLinkState(k)
	if ret != nvml.SUCCESS {
		l.known = l.known && (classify(ret) == unsupported || classify(ret) == invalid)
		return false
	}
	if active != nvml.FEATURE_ENABLED {
		return true
	}
	switch kind, ret := d.root.GetNvLinkRemoteDeviceType(k); {
	case ret != nvml.SUCCESS:
		l.known = false
	case kind == nvml.NVLINK_DEVICE_TYPE_SWITCH:
		l.switches++
	case kind == nvml.NVLINK_DEVICE_TYPE_GPU:
		pci, ret := d.root.GetNvLinkRemotePciInfo(k)
		if l.known = l.known && ret == nvml.SUCCESS; l.known {
			l.gpus[busID(&pci)]++
		}
	}
	return true
}
