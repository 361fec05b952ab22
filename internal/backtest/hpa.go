// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/peers"
)

// hpa is a HorizontalPodAutoscaler of the simulated service, and KEDA, which
// above zero replicas is one on an external metric: the operator's polling,
// activation and cooldown only lead to zero and back.
type hpa struct {
	model  peers.HPA
	signal Signal
	chain  Chain

	reading peers.Reading
}

func (h *hpa) decide(c *cluster, now int) (int, []string) {
	if !h.chain.due(now) {
		return -1, nil
	}
	h.read(c, c.at(h.chain.measured(now)))
	return h.model.Sync(now, &h.reading), nil
}

// read is what the HPA's two sources tell: the API server of the pods as they
// are now, the metrics API of what was measured then. A draining pod's server
// takes no requests, so it is not ready.
func (h *hpa) read(c *cluster, s *snapshot) {
	r := &h.reading
	r.Spec = c.spec
	r.Status, _ = c.live()
	r.Pods = r.Pods[:0]
	for _, p := range c.pods {
		pod := peers.Pod{Terminating: p.phase >= draining, Pending: p.phase <= pulling, Ready: p.phase == serving}
		if h.model.Kind == peers.PodsAverage {
			v, ok := c.over(s, s.find(p.id), h.signal, h.chain.Collect)
			pod.HasSample, pod.Milli = ok, milli(v)
		}
		r.Pods = append(r.Pods, pod)
	}
	switch h.model.Kind {
	case peers.ObjectValue: // the mean over the pods that tell one
		sum, n := c.total(s, h.signal, h.chain.Collect)
		r.Milli, r.HasValue = milli(sum/math.Max(1, float64(n))), n > 0
	case peers.ExternalAverage: // where nobody tells one KEDA reads zero, by its ignoreNullValues
		sum, _ := c.total(s, h.signal, h.chain.Collect)
		r.Milli, r.HasValue = milli(sum), true
	}
}

// milli is a value as metrics APIs give it: whole thousandths, the rest cut off.
func milli(v float64) int64 { return int64(v * 1000) }

// total is what a query would sum, and over how many pods.
func (c *cluster) total(s *snapshot, sig Signal, collect int) (sum float64, n int) {
	for i := range s.pods {
		if v, ok := c.over(s, &s.pods[i], sig, collect); ok {
			sum += v
			n++
		}
	}
	return sum, n
}
