// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// TestGoldenPages compares whole pages with testdata, byte for byte: names,
// labels and their order are public. -update writes them.
func TestGoldenPages(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	a := wholeGPU(0, at, map[gpu.FieldID]float64{
		gpu.SMClock: 1980, gpu.MemClock: 3201, gpu.GPUTemp: 52, gpu.PowerUsage: 627.25, gpu.TotalEnergy: 123_456_789_012,
		gpu.GPUUtil: 97, gpu.FBUsed: 81_920, gpu.XIDErrors: 94, gpu.GREngineActive: 0.9712345, gpu.PCIeTxBytes: 1.5e9,
	})
	a.Owners = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "server"}}
	a.XIDs = []gpu.XIDCount{{Code: 94, Count: 3, Last: at.Add(-time.Hour)}}
	mig := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.FBUsed: 12, gpu.GREngineActive: 0})
	mig.UUID, mig.MIG = "MIG-5", &gpu.MIG{ParentUUID: "GPU-00000001-aaaa", GPUInstance: 7, ComputeInstance: 0, Profile: "1g.18gb"}
	lost := wholeGPU(2, at.Add(-time.Minute), map[gpu.FieldID]float64{gpu.GPUUtil: 50})
	lost.Model, lost.Err = `odd "model" \ name`, gpu.ErrLost
	s := snapshot(at, a, mig, lost)
	s.Backend, s.OwnersTime = "nvml", at
	s.Unmatched = []gpu.Allocation{{DeviceID: "GPU-gone"}}

	for _, p := range Profiles() {
		r := newRenderer(&Config{
			Profile: p, Collectors: p.DefaultCollectors(), Hostname: "gpu-node-1", Kubernetes: true, Version: "v1.2.3", Revision: "abc", InvalidLines: 1,
		})
		var pg page
		r.render(&pg, s, Stats{Duration: 2500 * time.Microsecond, Errors: 61}, at.Add(10*time.Millisecond))
		for f, suffix := range []string{text: ".txt", openMetrics: ".openmetrics.txt"} {
			got := strings.ReplaceAll(string(pg.whole(format(f), r.families)), runtime.Version(), "GOVERSION")
			file := filepath.Join("testdata", "page-"+string(p)+suffix)
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", file, diff)
			}
		}
	}
}
