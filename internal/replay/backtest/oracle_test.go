// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// An oracle's replicas are ready when the load needs them, and not a minute earlier,
// however long each start takes.
func TestOracleStartsInTime(t *testing.T) {
	m := preset(t, "llama-8b")
	cfg := Config{
		Trace: steady(t, 1800, 4, 30, 4, 20), Model: m, Seed: 4, Min: 1, Max: 40, Warmup: 600,
		Startup: service.Startup{Median: 240, Sigma: 0.4, NodeShare: 0.3, NodeMedian: 90, ShortagesPerDay: 20, ShortageMedian: 300},
	}
	r := run(t, cfg, contender.Oracle(1, 15))[0]
	early, late := 0.0, 0.0 // minutes × replicas
	for i, p := range r.Minutes[12:] {
		late += max(0, p.Need-0.5-p.Serving)
		if i+12 < 29 { // the load rises at minute 30
			early += max(0, p.Serving-p.Need-1.5)
		}
	}
	if late > 1 || early > 3 {
		t.Errorf("%.1f replica minutes were missing, %.1f served before the load rose", late, early)
	}
	if r.Killed != 0 {
		t.Errorf("%d starting pods were deleted", r.Killed)
	}
}

// The cheapest oracle that keeps 99 % costs at most as much as the cheapest setting of the
// peers that does.
func TestOraclesAreCheapest(t *testing.T) {
	cfg := Config{Trace: wave(t), Model: preset(t, "llama-8b"), Startup: service.DefaultStartup(60), Seed: 3, Peak: 6}
	cheapest := func(who []contender.Entry) float64 {
		best := 1e9
		for _, r := range run(t, cfg, who...) {
			if r.Violations <= 1 {
				best = min(best, r.GPUHours)
			}
		}
		return best
	}
	oracle, peer := cheapest(contender.Oracles()), cheapest(contender.QuickGrid().Peers(nil, contender.OnRequests))
	if oracle > peer || oracle > 1e8 {
		t.Errorf("the cheapest oracle takes %.2f GPU-hours, the cheapest peer %.2f", oracle, peer)
	}
}
