// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

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
