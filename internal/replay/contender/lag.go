// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"math/rand/v2"

	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// Lag describes the stages between a pod and an autoscaler. Each stage runs periodically
// and reads the last result of the stage before it. Times are in seconds; a period of 0 or
// 1 adds no lag.
type Lag struct {
	Name                  string
	Collect, Scrape, Rule int // periods of the exporter, of Prometheus and of its rules
	Delay                 int // constant
	Sync                  int // period of the autoscaler

	phase [4]int // of Sync, Rule, Scrape and Collect
}

// DefaultScrape is the interval of the Prometheus operator, in seconds.
const DefaultScrape = 30

// The lags below are those of default settings. dcgm-exporter collects every 30 s. The
// Prometheus operator scrapes and evaluates rules every 30 s, dcgm-exporter's chart scrapes
// every 15 s. The HPA syncs every 15 s.

// Lags are those of default settings.
type Lags struct{ GPU, GPURule, Pod, Direct Lag }

// DefaultLags returns the lags of default settings: of GPU metrics, of GPU metrics through a
// recording rule, of the pods' own metrics, and of GPUPilot's metrics API.
func DefaultLags() Lags { return Lags{gpuLag(), gpuRuleLag(), podLag(), directLag()} }

func gpuLag() Lag { return Lag{Name: "classic", Collect: 30, Scrape: 15, Sync: peers.SyncSeconds} }
func gpuRuleLag() Lag {
	return Lag{Name: "classic", Collect: 30, Scrape: 15, Rule: 30, Sync: peers.SyncSeconds}
}
func podLag() Lag { return Lag{Name: "classic", Scrape: DefaultScrape, Sync: peers.SyncSeconds} }

// directLag is the lag of GPUPilot's metrics API.
func directLag() Lag { return Lag{Name: "direct", Delay: 1, Sync: peers.SyncSeconds} }

// withPhases returns the lag with random phases of its stages.
func (l Lag) withPhases(seed uint64) Lag {
	rng := rand.New(rand.NewPCG(seed, 0xc4a17))
	for i := range l.phase {
		l.phase[i] = rng.IntN(60)
	}
	return l
}

// syncs reports whether the autoscaler syncs at a second.
func (l *Lag) syncs(now int) bool { return lastRun(now, l.Sync, l.phase[0]) == now }

// measuredAt returns the second at which the value that is read now was measured.
func (l *Lag) measuredAt(now int) int {
	t := lastRun(now-l.Delay, l.Rule, l.phase[1])
	t = lastRun(t, l.Scrape, l.phase[2])
	return lastRun(t, l.Collect, l.phase[3])
}

// lastRun returns the last time at or before t at which a stage ran.
func lastRun(t, period, phase int) int {
	if period <= 1 {
		return t
	}
	return t - ((t-phase)%period+period)%period
}
