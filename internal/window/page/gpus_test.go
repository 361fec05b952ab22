// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The index of a GPU on its node and the compute slices of a MIG instance are those of the newest page: an instance can
// come back with another profile.
func TestPlaces(t *testing.T) {
	store := series.New(series.Config{})
	p := NewExporter(Config{Target: store.Target("t", series.TargetLabels{Node: "n"})})
	f := func(page, want string) {
		t.Helper()
		if err := p.Read([]byte(page)); err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, d := range store.Devices("", nil, time.Unix(0, 0), 0) {
			got += fmt.Sprintf("%s %d %d, ", d.Device, d.Index, d.Slices)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", page, got, want)
		}
	}
	f("DCGM_FI_DEV_GPU_UTIL{UUID=\"GPU-1\"} 7\n", "GPU-1 -1 0, ")
	f("DCGM_FI_DEV_GPU_UTIL{gpu=\"x\",UUID=\"GPU-1\",GPU_I_PROFILE=\"huge\"} 7\n", "GPU-1 -1 0, ")
	f("DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",UUID=\"GPU-1\"} 7\n", "GPU-1 2 0, ")
	f("DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",UUID=\"GPU-1\",GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"7\"} 7\n", "GPU-1 2 0, GPU-1/gi7 2 1, ")
	f("DCGM_FI_DEV_GPU_UTIL{gpu=\"2\",UUID=\"GPU-1\",GPU_I_PROFILE=\"3g.40gb\",GPU_I_ID=\"7\"} 7\n", "GPU-1 2 0, GPU-1/gi7 2 3, ")
}

// Devices that a page invents anew each time do not add up.
func TestInventedDevicesAreForgotten(t *testing.T) {
	target := series.New(series.Config{}).Target("t", series.TargetLabels{})
	p := NewExporter(Config{Target: target, Watch: true})
	now := time.Unix(1_800_000_000, 0)
	most := 0
	for i := range 1000 {
		text := fmt.Sprintf("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{UUID=\"G%d\"} %[1]d\nDCGM_FI_DEV_GPU_UTIL{UUID=\"G%[1]d\"} 7\n", i+1)
		if err := p.Read([]byte(text)); err != nil {
			t.Fatal(err)
		}
		p.Freshness(now.Add(time.Duration(i)*time.Second), false, &IntervalEstimate{})
		most = max(most, len(p.gpus.devices))
		if p.IsOvergrown() {
			p.Forget()
		}
	}
	if want := 2*2 + 64 + 1; most > want { // 2 lines a page
		t.Errorf("%d devices are remembered, want at most %d", most, want)
	}
}
