// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// pathLevels are DCGM's levels of PCIe paths, DCGM_TOPOLOGY_….
var pathLevels = map[uint64]gpu.PathLevel{
	0x01: gpu.SameBoard, 0x02: gpu.OneSwitch, 0x04: gpu.SomeSwitches, 0x08: gpu.HostBridge, 0x10: gpu.SameNUMANode, 0x20: gpu.AcrossNUMA,
}

// pcieBits is the number of low bits of a path that are its PCIe level. The bit N above them
// says that there are N+1 NVLinks.
const pcieBits = 8

// Topology returns the paths between the GPUs, and from them to the CPUs. DCGM gives no NUMA
// nodes. What it does not give of a GPU is left out, with an error. See gpu.TopologyReader.
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
	slices.SortFunc(whole, func(a, b *device) int { return cmp.Compare(a.Index, b.Index) })
	ses := whole[0].card.ses
	if ses.Broken() || !ses.Enter() {
		return gpu.Topology{}, fmt.Errorf("topology: %w (since the devices were enumerated)", gpu.ErrNoDriver)
	}
	defer ses.Leave()
	links, err := ses.activeLinks()
	var t gpu.Topology
	for i, d := range whole {
		paths, cpus, failed := ses.pathsFrom(d.card.id)
		err = errors.Join(err, failed)
		g := gpu.GPUPlace{UUID: d.UUID, CPUs: cpus, NVLinks: -1}
		if links != nil {
			g.NVLinks = links[d.card.id]
		}
		t.GPUs = append(t.GPUs, g)
		for _, e := range whole[i+1:] {
			pair := gpu.GPUPair{A: d.UUID, B: e.UUID, NVLinks: -1}
			if p, ok := paths[e.card.id]; ok {
				pair.Path, pair.NVLinks = pathLevels[p&(1<<pcieBits-1)], bits.Len64(p>>pcieBits)
			}
			t.Pairs = append(t.Pairs, pair)
		}
	}
	if err != nil && ses.Broken() {
		return gpu.Topology{}, err
	}
	return t, err
}

// pathsFrom returns DCGM's paths from a GPU to the others, and the CPUs near it.
func (s *session) pathsFrom(id uint) (paths map[uint]uint64, cpus string, err error) {
	p, err := s.engine.topology(id)
	if err != nil {
		return nil, "", s.judge(err)
	}
	set := make([]uint, len(p.cpus))
	for i, word := range p.cpus {
		set[i] = uint(word)
	}
	paths = map[uint]uint64{}
	for _, to := range p.to[:p.count] {
		paths[uint(to.gpu)] = uint64(to.path)
	}
	return paths, gpu.Ranges(set), nil
}

// activeLinks returns the number of each GPU's active NVLinks; nil: not known.
func (s *session) activeLinks() (map[uint]int, error) {
	list, err := s.engine.links()
	if err != nil {
		return nil, s.absent(err)
	}
	n := map[uint]int{}
	for _, l := range list {
		if l.kind == kindGPU {
			n[uint(l.parent)]++
		}
	}
	return n, nil
}
