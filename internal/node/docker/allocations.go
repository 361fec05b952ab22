// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Allocations returns the devices that the containers hold. A token that matches no
// device is kept as its device id, so that it is reported as unmatched.
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
				if tokenMatches(token, devices, i) {
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

// tokenMatches reports whether a token selects the i-th device. The name of a GPU also
// selects its MIG instances.
func tokenMatches(token string, devices []gpu.Device, i int) bool {
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
	return err == nil && d.MIG != nil && place == instanceIndex(devices, i)
}

// instanceIndex returns the index of the i-th device among the instances of its GPU.
func instanceIndex(devices []gpu.Device, i int) int {
	n := 0
	for j := range devices[:i] {
		if m := devices[j].MIG; m != nil && m.ParentUUID == devices[i].MIG.ParentUUID {
			n++
		}
	}
	return n
}
