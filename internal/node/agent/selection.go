// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// instancesPerGPU is DCGM_MAX_INSTANCES_PER_GPU: DCGM numbers GPU instances
// with 8 ids for each GPU.
const instancesPerGPU = 8

// Selection selects the devices to collect. The zero value is f: the MIG
// instances of each GPU that has them, otherwise the GPU itself.
type Selection struct {
	gpus, instances bool
	gpuIDs          idSet // nil: all
	instanceIDs     idSet // nil: all
}

type idSet map[int]bool

// major reports whether the switch, CPU or GPU with this id is selected.
func (s *Selection) major(id int) bool {
	return !s.gpus && !s.instances || s.gpus && s.gpuIDs.has(id)
}

// minor reports whether a link of a switch, or a core of a CPU, is selected. A
// list of switches or CPUs limits them too.
func (s *Selection) minor(parent, id int) bool {
	return !s.gpus && !s.instances || s.instances && s.instanceIDs.has(id) && (!s.gpus || s.gpuIDs.has(parent))
}

// ParseSelection reads dcgm-exporter's device syntax: f, or g and i (or g+i)
// for GPUs and GPU instances, each with an optional list such as g:0,2-3. A
// GPU's id is its index. An instance's id is DCGM's: its position among the
// GPU's instances, plus 8 times the GPU's index.
func ParseSelection(s string) (Selection, error) {
	const allowed = `want f, g, i or g+i; g and i can have a list, such as g:0,2-3`
	var sel Selection
	for part := range strings.SplitSeq(s, "+") {
		kind, list, hasList := strings.Cut(part, ":")
		ids, err := parseIDs(list, hasList)
		if err != nil {
			return Selection{}, fmt.Errorf("device selection %q: %w: %s", s, err, allowed)
		}
		switch {
		case kind == "f" && !hasList && part == s:
			return Selection{}, nil
		case kind == "g" && !sel.gpus:
			sel.gpus, sel.gpuIDs = true, ids
		case kind == "i" && !sel.instances:
			sel.instances, sel.instanceIDs = true, ids
		default:
			return Selection{}, fmt.Errorf("device selection %q: %s", s, allowed)
		}
	}
	return sel, nil
}

func parseIDs(list string, hasList bool) (idSet, error) {
	if !hasList {
		return nil, nil
	}
	ids := idSet{}
	for r := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(r, "-")
		a, err := strconv.ParseUint(from, 10, 12)
		if err != nil {
			return nil, fmt.Errorf("%q is not an id", r)
		}
		b := a
		if isRange {
			if b, err = strconv.ParseUint(to, 10, 12); err != nil || b < a {
				return nil, fmt.Errorf("%q is not a range", r)
			}
		}
		for id := a; id <= b; id++ {
			ids[int(id)] = true
		}
	}
	return ids, nil
}

// Filter returns the selected devices of all, in their order.
func (s *Selection) Filter(all []gpu.Device) []gpu.Device {
	if !s.gpus && !s.instances {
		return flexible(all)
	}
	var out []gpu.Device
	for i := range all {
		d := &all[i]
		if d.MIG == nil && s.gpus && s.gpuIDs.has(d.Index) ||
			d.MIG != nil && s.instances && s.instanceIDs.has(instanceID(all, i)) {
			out = append(out, *d)
		}
	}
	return out
}

func (ids idSet) has(id int) bool { return ids == nil || ids[id] }

// flexible removes the GPUs that have instances.
func flexible(all []gpu.Device) []gpu.Device {
	parents := map[string]bool{}
	for i := range all {
		if all[i].MIG != nil {
			parents[all[i].MIG.ParentUUID] = true
		}
	}
	var out []gpu.Device
	for i := range all {
		if all[i].MIG != nil || !parents[all[i].UUID] {
			out = append(out, all[i])
		}
	}
	return out
}

// instanceID is DCGM's id of the GPU instance of the i-th device. Compute
// instances of one GPU instance share it.
func instanceID(all []gpu.Device, i int) int {
	d := &all[i]
	before := map[int]bool{}
	for j := range all[:i] {
		if m := all[j].MIG; m != nil && m.ParentUUID == d.MIG.ParentUUID && m.GPUInstance != d.MIG.GPUInstance {
			before[m.GPUInstance] = true
		}
	}
	return d.Index*instancesPerGPU + len(before)
}
