// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// BenchmarkPeers is one replay of the quick grid's peers. A study spends most of its time
// on them.
func BenchmarkPeers(b *testing.B) {
	m, err := service.Preset("llama-8b")
	if err != nil {
		b.Fatal(err)
	}
	cfg := Config{Trace: wave(b), Model: m, Peak: 20, Startup: service.DefaultStartup(120), Seed: 3}
	peers := contender.QuickGrid().Peers(nil, "")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Run(b.Context(), cfg, peers); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(peers)), "peers")
}
