// SPDX-License-Identifier: Apache-2.0

package gputest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// xids raises errors on GPU 0 one after another and waits for each.
func xids(t *testing.T, b *bench) {
	start := time.Now()
	gpus := b.gpus(t)
	for _, d := range gpus {
		if x, ok := b.read(t, d.UUID, gpu.XIDErrors).Get(gpu.XIDErrors); !ok || x != 0 {
			t.Errorf("%s: XID_ERRORS = %v, %v before any; want 0", d.UUID, x, ok)
		}
		if x := b.Reader.XIDs(d.UUID); len(x) != 0 {
			t.Errorf("%s: XIDs = %v before any", d.UUID, x)
		}
	}
	counts := map[uint64]uint64{}
	for _, code := range []uint64{79, 31, 79} {
		b.Control.RaiseXID(0, code)
		counts[code]++
		eventually(t, func() string {
			x, _ := b.read(t, gpus[0].UUID, gpu.XIDErrors).Get(gpu.XIDErrors)
			got := b.Reader.XIDs(gpus[0].UUID)
			if x != float64(code) || len(got) != len(counts) {
				return fmt.Sprintf("XID_ERRORS = %v, XIDs = %v; want %d and %v", x, got, code, counts)
			}
			for _, c := range got {
				if c.Count != counts[c.Code] {
					return fmt.Sprintf("XIDs = %v, want %v", got, counts)
				}
			}
			return ""
		})
	}
	got := b.Reader.XIDs(gpus[0].UUID)
	if !slices.IsSortedFunc(got, func(a, b gpu.XIDCount) int { return int(a.Code) - int(b.Code) }) {
		t.Errorf("XIDs are not sorted by code: %v", got)
	}
	for _, c := range got {
		if c.Last.Before(start) || c.Last.After(time.Now()) {
			t.Errorf("XID %d: last at %v, the test began at %v", c.Code, c.Last, start)
		}
	}
	got[0].Count = 1000 // the slice is the caller's
	if again := b.Reader.XIDs(gpus[0].UUID); again[0].Count == 1000 {
		t.Error("the slice that XIDs returned is shared")
	}
	if x := b.Reader.XIDs(gpus[1].UUID); len(x) != 0 {
		t.Errorf("GPU 1 has GPU 0's XIDs: %v", x)
	}
}

// awaitXID waits until the GPU's only XID error is this one.
func (b *bench) awaitXID(t *testing.T, uuid string, code uint64) {
	t.Helper()
	eventually(t, func() string {
		if got := b.Reader.XIDs(uuid); len(got) != 1 || got[0].Code != code || got[0].Count != 1 {
			return fmt.Sprintf("XIDs = %v, want one of %d", got, code)
		}
		return ""
	})
}

// lostXIDs raises an error on GPU 1 after it is lost. It is asked for again as the agent
// does, without an answer.
func lostXIDs(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	for _, d := range gpus {
		b.read(t, d.UUID, gpu.XIDErrors)
	}
	b.Control.Lose(1)
	var v gpu.Values
	if err := b.Reader.Read(gpus[1].UUID, gpu.SetOf(gpu.XIDErrors), &v); !errors.Is(err, gpu.ErrLost) {
		t.Errorf("reading the lost GPU: %v, want ErrLost", err)
	}
	b.Control.RaiseXID(1, 79)
	_ = b.Reader.Read(gpus[1].UUID, gpu.SetOf(gpu.XIDErrors), &v)
	b.awaitXID(t, gpus[1].UUID, 79)
}

// hungXIDs raises an error on GPU 1 while a read of it hangs.
func hungXIDs(t *testing.T, b *bench) {
	gpus := b.gpus(t)
	for _, d := range gpus {
		b.read(t, d.UUID, gpu.XIDErrors)
	}
	release := sync.OnceFunc(b.Control.Hang(1))
	defer release()
	var hung sync.WaitGroup
	hung.Go(func() {
		var v gpu.Values
		_ = b.Reader.Read(gpus[1].UUID, gpu.SetOf(steady()...), &v) // a reader may return an error
	})
	b.Control.RaiseXID(1, 119)
	b.awaitXID(t, gpus[1].UUID, 119)
	release()
	hung.Wait()
}

// mig cuts GPU 0 in three.
func mig(t *testing.T, b *bench) {
	whole := b.gpus(t)
	const profile, n = "1g.18gb", 3
	b.Control.EnableMIG(0, profile, n)
	devices := b.devices(t)
	if len(devices) != len(whole)+n {
		t.Fatalf("%d devices, want %d GPUs and %d instances", len(devices), len(whole), n)
	}
	if devices[0].UUID != whole[0].UUID || devices[0].MIG != nil {
		t.Errorf("first comes %+v, want the parent", devices[0])
	}
	seen := map[string]bool{}
	instances := map[int]bool{}
	for _, d := range devices[1 : 1+n] {
		if d.MIG == nil {
			t.Fatalf("%+v is no MIG instance", d)
		}
		if d.MIG.ParentUUID != whole[0].UUID || d.MIG.Profile != profile || d.Index != 0 || d.Minor != whole[0].Minor || d.PCIBusID != whole[0].PCIBusID {
			t.Errorf("instance %+v %+v, want one of GPU 0 of profile %s", d, *d.MIG, profile)
		}
		if !migUUID.MatchString(d.UUID) || seen[d.UUID] || instances[d.MIG.GPUInstance] {
			t.Errorf("instance %+v %+v: UUID or id is malformed or another's", d, *d.MIG)
		}
		seen[d.UUID], instances[d.MIG.GPUInstance] = true, true
		v := b.read(t, d.UUID, gpu.FBTotal, gpu.FBUsed)
		if x, ok := v.Get(gpu.FBTotal); !ok || x <= 0 || x >= 143771/2 {
			t.Errorf("instance %s: memory %v MiB, %v", d.UUID, x, ok)
		}
	}
	b.healthy(t, devices[1+n].UUID)
}
