// SPDX-License-Identifier: Apache-2.0

package backtest

import "github.com/gpupilot/gpupilot/internal/peers"

// kpa is Knative's autoscaler of the simulated service. It reads every pod each
// second, where the real one reads a sample of many.
type kpa struct {
	target        float64
	window, delay int
	min, max      int

	model *peers.KPA
}

func (k *kpa) decide(c *cluster, now int) (int, []string) {
	if k.model == nil {
		k.model = peers.NewKPA(k.target, k.window, k.delay, now, len(c.ready))
	}
	seen, n := c.total(c.at(now-1), Concurrency, 0)
	if n > 0 || c.buffer.len() > 0 {
		k.model.Record(now, seen+float64(c.buffer.len()))
	}
	if now%peers.KPATick != 0 {
		return -1, nil
	}
	desired, ok := k.model.Scale(now, len(c.ready))
	if !ok {
		return -1, nil
	}
	return min(max(desired, k.min), k.max), nil
}
