// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// onBus are GPUs at the addresses 00000000:1B:00.0, …:2B:00.0 and so on, with these drivers.
func onBus(drivers ...string) (out []gpu.BusGPU) {
	for i, d := range drivers {
		out = append(out, gpu.BusGPU{PCIBusID: address(i), Driver: d})
	}
	return out
}

func address(i int) string { return "00000000:" + string(rune('1'+i)) + "B:00.0" }

// onTheBus are GPUs that are listed at those addresses.
func onTheBus(n int) []gpu.Device {
	out := gpus(n)
	for i := range out {
		out[i].PCIBusID = address(i)
	}
	return out
}

// A GPU that was never listed since the agent started is missing, and named once.
func TestAGPUThatWasNeverListed(t *testing.T) {
	r := newReader(onTheBus(1)...)
	r.onBus = onBus("nvidia", "nvidia", "vfio-pci", "")
	bubble(t, Config{}, r, nil, func(n *node) {
		f := func(what string, counts gpu.GPUCounts, missing int) {
			t.Helper()
			n.pass(2 * offeredEvery)
			if v := n.out.last().Inventory; v == nil || v.GPUCounts != counts || v.Missing() != missing {
				t.Errorf("%s: %+v, want %+v, %d missing", what, v, counts, missing)
			}
		}
		f("one of two", gpu.GPUCounts{Listed: 1, Bound: 2, Allocatable: -1}, 1)
		const named = "does not list them: see the kernel's log for NVRM and Xid"
		if strings.Count(n.logs, named) != 1 || !strings.Contains(n.logs, "pci=[00000000:2B:00.0]") {
			t.Errorf("log:\n%s", n.logs)
		}
		code, body := fetch(t, n.Handler(), "/api/v1/discovery")
		for _, want := range []string{`"listed": 1`, `"bound": 2`, `"missing": 1`, `"driver": "vfio-pci"`, `"unlisted": true`} {
			if code != 200 || !strings.Contains(body, want) {
				t.Errorf("%d, no %s:\n%s", code, want, body)
			}
		}
		r.set(func() { r.devices = onTheBus(2) })
		f("both", gpu.GPUCounts{Listed: 2, Bound: 2, Allocatable: -1}, 0)
		if !strings.Contains(n.logs, "the GPU library lists all GPUs of the PCI bus") {
			t.Errorf("log:\n%s", n.logs)
		}
		r.set(func() { r.offered = []gpu.DeviceID{{UUID: "GPU-0"}, {UUID: "GPU-1"}, {UUID: "GPU-7"}} })
		f("offered", gpu.GPUCounts{Listed: 2, Bound: 2, Allocatable: 3}, 1)
		r.set(func() { r.offerErr = errors.New("gRPC status \"12\"") })
		f("an old kubelet", gpu.GPUCounts{Listed: 2, Bound: 2, Allocatable: -1}, 0)
		r.set(func() { r.devices, r.err, r.onBus = nil, gpu.ErrNoDriver, nil })
		f("no driver", gpu.GPUCounts{Listed: -1, Bound: -1, Allocatable: -1}, 0)
		r.set(func() {
			if limit := 2 * int(n.out.last().Time.Sub(n.out.snaps[0].Time)/offeredEvery); r.offers > limit+1 {
				t.Errorf("%d requests, want one a minute", r.offers)
			}
		})
	})
}

// A GPU that is taken away between the reads of the bus and of the library is not named: the
// next enumeration sees that both have lost it.
func TestAMomentIsNotNamed(t *testing.T) {
	r := newReader(onTheBus(1)...)
	r.onBus = onBus("nvidia", "nvidia")
	bubble(t, Config{}, r, nil, func(n *node) {
		r.set(func() { r.onBus = onBus("nvidia") })
		n.pass(time.Minute)
		if v := n.out.last().Inventory; v.Missing() != 0 || strings.Contains(n.logs, "does not list") {
			t.Errorf("%+v, log:\n%s", v, n.logs)
		}
	})
}
