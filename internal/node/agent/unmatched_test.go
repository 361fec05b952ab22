// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// A device that cannot be attributed is counted, and its resource is named in the log once. A GPU under a name that does
// not count is never attributed: the controller, which knows names alone, would not believe it.
func TestUnmatchedResourcesAreNamedOnce(t *testing.T) {
	hold := func(resource, device string, uncounted bool) gpu.Allocation {
		return gpu.Allocation{Resource: resource, DeviceID: device, Owner: gpu.Owner{Namespace: "ml", Pod: "p"}, Uncounted: uncounted}
	}
	allocs := []gpu.Allocation{
		hold("nvidia.com/A100", "GPU-0", false), hold("example.com/a100", "GPU-1", true), hold("example.com/a100", "GPU-2", true),
		hold("nvidia.com/gpu", "GPU-9", false),
	}
	owners := func(context.Context) ([]gpu.Allocation, error) { return allocs, nil }
	bubble(t, Config{}, newReader(gpus(3)...), owners, func(n *node) {
		n.pass(10 * time.Second)
		s := n.out.last()
		if len(s.Unmatched) != 3 || len(device(t, s, "GPU-0").Owners) != 1 || len(device(t, s, "GPU-1").Owners) != 0 {
			t.Errorf("unmatched %+v, owners of GPU-1 %+v", s.Unmatched, device(t, s, "GPU-1").Owners)
		}
		if strings.Count(n.logs, "resource=example.com/a100") != 1 || !strings.Contains(n.logs, "--gpu-resources") || strings.Contains(n.logs, "resource=nvidia.com/gpu") {
			t.Errorf("after 10 s:\n%s", n.logs)
		}
		n.pass(10 * time.Minute)
		if strings.Count(n.logs, "resource=example.com/a100") != 1 || strings.Count(n.logs, "resource=nvidia.com/gpu device=GPU-9") != 1 ||
			strings.Contains(n.logs, "resource=nvidia.com/A100") {
			t.Errorf("after 10 min:\n%s", n.logs)
		}
	})
}

// A MIG instance that is new, and listed within an enumeration, is not worth a line.
func TestNewDevicesAreNotNamed(t *testing.T) {
	owners := func(context.Context) ([]gpu.Allocation, error) {
		return []gpu.Allocation{{Resource: "nvidia.com/gpu", DeviceID: "GPU-1"}}, nil
	}
	r := newReader(gpus(1)...)
	bubble(t, Config{}, r, owners, func(n *node) {
		n.pass(5 * time.Second)
		r.set(func() { r.devices = gpus(2) })
		n.pass(5 * time.Minute)
		if strings.Contains(n.logs, "none of those collected here") {
			t.Errorf("log:\n%s", n.logs)
		}
	})
}
