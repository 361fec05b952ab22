// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// NVLinks are read now and then, of whole GPUs.
func TestLinksAreReadNowAndThen(t *testing.T) {
	instance := gpu.Device{Index: 1, UUID: "MIG-1", MIG: &gpu.MIG{ParentUUID: "GPU-1", GPUInstance: 7}}
	r := newReader(append(gpus(2), instance)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		n.pass(25 * time.Second)
		if r.links["GPU-0"] != 3 || len(r.links) != 1 {
			t.Errorf("read %v", r.links)
		}
		if got := device(t, n.out.last(), "GPU-0").Links.Down; len(got) != 1 || got[0] != 3 {
			t.Errorf("links %v", got)
		}
	})
}

// Each collector tells when it last succeeded, how long that took, and how
// often it failed.
func TestCollectorStates(t *testing.T) {
	r := newReader(gpus(2)...)
	r.takes["GPU-1"] = 30 * time.Millisecond
	fails := errors.New("no kubelet")
	bubble(t, Config{}, r, func(context.Context) ([]gpu.Allocation, error) { return nil, fails }, func(n *node) {
		n.pass(5 * time.Second)
		s := n.out.last()
		of := map[string]gpu.CollectorState{}
		for _, c := range s.Collectors {
			of[c.Name] = c
		}
		if c := of["gpus"]; !c.Last.Equal(s.Time) || c.Took != 30*time.Millisecond || c.Errors != 0 {
			t.Errorf("gpus: %+v at %v", c, s.Time)
		}
		if c := of["allocations"]; !c.Last.IsZero() || c.Errors < 4 {
			t.Errorf("allocations: %+v", c)
		}
		if c := of["devices"]; c.Last.IsZero() || c.Errors != 0 {
			t.Errorf("devices: %+v", c)
		}
		if _, asked := of["parts"]; asked {
			t.Error("parts were never asked")
		}
	})
}

// The library's verdicts are asked for at each read where they are shown, else seldom, of whole
// GPUs; one that fails leaves none.
func TestVerdicts(t *testing.T) {
	instance := gpu.Device{Index: 1, UUID: "MIG-1", MIG: &gpu.MIG{ParentUUID: "GPU-1", GPUInstance: 7}}
	r := newReader(append(gpus(1), instance)...)
	bubble(t, Config{}, r, nil, func(n *node) {
		verdicts := func() *gpu.Verdicts { return device(t, n.out.last(), "GPU-0").Verdicts }
		asked := func() (times int) { r.set(func() { times = r.judged["GPU-0"] }); return times }
		n.pass(3 * time.Second)
		if v := verdicts(); asked() != 1 || v == nil || v[gpu.WatchMem].Health != gpu.HealthWarn {
			t.Errorf("no page shows them: asked %d times, verdicts %v", asked(), v)
		}
		n.pass(judgeEvery)
		if v := verdicts(); asked() != 2 || v == nil {
			t.Errorf("later: asked %d times, verdicts %v", asked(), v)
		}
		r.judge.Store(true)
		n.pass(time.Second)
		if v := verdicts(); v != nil {
			t.Errorf("after a failure: %v", v)
		}
		if len(r.judged) != 1 {
			t.Errorf("asked for %v", r.judged)
		}
	})
}
