// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// fillFleet stores one reading of each GPU of that many nodes of eight. Three in
// four GPUs have an owner.
func fillFleet(t testing.TB, store *series.Store, nodes int, at time.Time) {
	t.Helper()
	fields := []gpu.FieldID{gpu.GPUUtil, gpu.MemCopyUtil, gpu.FBUsed, gpu.FBFree, gpu.PowerUsage, gpu.GPUTemp}
	for n := range nodes {
		node := fmt.Sprintf("node-%05d", n)
		target := store.Target("agent/gpupilot-system/agent-"+node, series.TargetLabels{Node: node})
		var owners []series.DeviceOwners
		var batch series.Batch
		for g := range 8 {
			device := fmt.Sprintf("GPU-%08x-%d", n, g)
			if g < 6 {
				owners = append(owners, series.DeviceOwners{Device: device, Owners: []gpu.Owner{{Namespace: fmt.Sprint("team-", n%40), Pod: fmt.Sprintf("web-%05d-%d", n, g), Container: "server"}}})
			}
			for i, field := range fields {
				ref, ok := target.Ref(series.Key{Device: device, Field: field})
				if !ok {
					t.Fatal("no room")
				}
				batch.Add(ref, float64((n+g+i)%101))
			}
		}
		target.SetOwners(at.Add(-time.Minute), owners)
		if _, err := target.Append(at, &batch); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkView is what the controller gives the page: the state of a fleet of 10,000 nodes with eight GPUs each.
func BenchmarkView(b *testing.B) {
	r := newRig(b)
	fillFleet(b, r.store, 10000, time.Now())
	b.ReportAllocs()
	for b.Loop() {
		if v := r.View(); len(v.Nodes) != 10000 {
			b.Fatal(len(v.Nodes))
		}
	}
}
