// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Allocations says which of the devices the containers hold. What none of them
// is stays as Docker has it, for the list of what is not matched.
func Allocations(containers []Container, devices []gpu.Device) []gpu.Allocation {
	var out []gpu.Allocation
	add := func(c Container, id string) {
		out = append(out, gpu.Allocation{Resource: "docker", DeviceID: id, Owner: gpu.Owner{Container: c.Name}})
	}
	for _, c := range containers {
		if c.All {
			for i := range devices {
				add(c, devices[i].UUID)
			}
		}
		for _, token := range c.Devices {
			matched := false
			for i := range devices {
				if names(token, devices, i) {
					matched = true
					add(c, devices[i].UUID)
				}
			}
			if !matched {
				add(c, token)
			}
		}
	}
	return out
}

// names says whether a token means the i-th device. A GPU's name means its
// instances as well: who holds it holds them.
func names(token string, devices []gpu.Device, i int) bool {
	d := &devices[i]
	if token == d.UUID || d.MIG != nil && token == d.MIG.ParentUUID {
		return true
	}
	card, instance, ofInstance := strings.Cut(token, ":")
	index, err := strconv.Atoi(card)
	if err != nil || index != d.Index {
		return false
	}
	if !ofInstance {
		return true
	}
	place, err := strconv.Atoi(instance)
	return err == nil && d.MIG != nil && place == placeOf(devices, i)
}

// placeOf is the i-th device's place among its GPU's instances.
func placeOf(devices []gpu.Device, i int) int {
	n := 0
	for j := range devices[:i] {
		if m := devices[j].MIG; m != nil && m.ParentUUID == devices[i].MIG.ParentUUID {
			n++
		}
	}
	return n
}
