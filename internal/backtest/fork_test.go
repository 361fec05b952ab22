// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"testing"
)

// BenchmarkPeers is one replay of the quick grid's peers: what a study spends
// its time on.
func BenchmarkPeers(b *testing.B) {
	m, err := Preset("llama-8b")
	if err != nil {
		b.Fatal(err)
	}
	cfg := Config{Trace: wave(), Model: m, Peak: 20, Startup: DefaultStartup(120), Seed: 3}
	peers := QuickGrid().Peers(nil, "")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Run(b.Context(), cfg, peers); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(peers)), "peers")
}
