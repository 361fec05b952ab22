// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// MetricKind is how a HorizontalPodAutoscaler counts a metric.
type MetricKind uint8

// The kinds of metrics.
const (
	PodsAverage     MetricKind = iota // Pods: the mean over pods
	ObjectValue                       // Object with a Value: one number for all, here the mean over the pods that tell one
	ExternalAverage                   // External with an AverageValue: the sum, by status.replicas; also KEDA's
)

// hpa is the HorizontalPodAutoscaler of Kubernetes 1.37 with one metric:
// pkg/controller/podautoscaler's replica_calculator.go and horizontal.go.
type hpa struct {
	kind      MetricKind
	signal    Signal
	target    float64 // in the signal's unit
	tolerance float64
	window    int // scale-down stabilisation, seconds
	min, max  int
	chain     Chain

	recommended []recommendation
	ups, downs  []scaleEvent
}

type recommendation struct {
	at, replicas int
}

// scaleEvent is a change of the replicas, for the rate policies.
type scaleEvent struct{ at, change int }

// ratePeriod and the policies are the defaults of autoscaling/v2: up by the
// more of 4 pods and 100 %, down by 100 %, each in 15 s.
const (
	ratePeriod = 15
	ratePods   = 4
)

func (h *hpa) decide(c *cluster, now int) (int, []string) {
	if !h.chain.due(now) {
		return -1, nil
	}
	desired, ok := h.metric(c, c.at(h.chain.measured(now)))
	if c.spec > h.max {
		desired, ok = h.max, true
	}
	if !ok {
		return -1, nil
	}
	desired = h.stabilize(c.spec, desired, now)
	desired = h.limit(c.spec, desired, now)
	if d := desired - c.spec; d > 0 {
		h.ups = append(h.ups, scaleEvent{now, d})
	} else if d < 0 {
		h.downs = append(h.downs, scaleEvent{now, -d})
	}
	return desired, nil
}

func (h *hpa) metric(c *cluster, s *snapshot) (int, bool) {
	switch h.kind {
	case PodsAverage:
		return h.pods(c, s)
	case ObjectValue:
		return h.object(c, s)
	default:
		return h.external(c, s)
	}
}

// within is the calculator's tolerance.
func (h *hpa) within(ratio float64) bool {
	return 1-h.tolerance <= ratio && ratio <= 1+h.tolerance
}

// podGroups is the pods as calcPlainMetricReplicas groups them.
type podGroups struct {
	ready, pending, missing int
	sum                     float64
}

// pods is GetMetricReplicas → calcPlainMetricReplicas. Pods whose phase is
// Pending are "unready", those without a sample "missing"; others count in
// full, ready or not.
func (h *hpa) pods(c *cluster, s *snapshot) (int, bool) {
	var g podGroups
	for _, p := range c.pods {
		if p.phase >= draining {
			continue
		}
		if p.phase <= pulling {
			g.pending++
			continue
		}
		v, ok := c.over(s, s.find(p.id), h.signal, h.chain.Collect)
		if !ok {
			g.missing++
			continue
		}
		g.ready++
		g.sum += v
	}
	if g.ready == 0 {
		return 0, false
	}
	ratio := g.sum / float64(g.ready) / h.target
	n, sum := g.ready, g.sum
	up := g.pending > 0 && ratio > 1
	if !up && g.missing == 0 {
		if h.within(ratio) {
			return c.spec, true
		}
		return ceil(ratio * float64(g.ready)), true
	}
	if ratio < 1 {
		sum += h.target * float64(g.missing)
	}
	if ratio != 1 {
		n += g.missing
	}
	if up {
		n += g.pending
	}
	again := sum / float64(n) / h.target
	if h.within(again) || ratio < 1 && again > 1 || ratio > 1 && again < 1 {
		return c.spec, true
	}
	desired := ceil(again * float64(n))
	if again < 1 && desired > c.spec || again > 1 && desired < c.spec {
		return c.spec, true
	}
	return desired, true
}

// object is GetObjectMetricReplicas → getUsageRatioReplicaCount: the ratio
// times the ready pods.
func (h *hpa) object(c *cluster, s *snapshot) (int, bool) {
	sum, n := c.total(s, h.signal, h.chain.Collect)
	if n == 0 {
		return 0, false
	}
	ratio := sum / float64(n) / h.target
	if c.spec == 0 {
		return ceil(ratio), true
	}
	if h.within(ratio) {
		return c.spec, true
	}
	return ceil(ratio * float64(len(c.ready))), true
}

// external is GetExternalPerPodMetricReplicas: pods are not looked at.
func (h *hpa) external(c *cluster, s *snapshot) (int, bool) {
	sum, n := c.total(s, h.signal, h.chain.Collect)
	if n == 0 {
		return 0, false
	}
	status, _ := c.live()
	if status > 0 && h.within(sum/(h.target*float64(status))) {
		return status, true
	}
	return ceil(sum / h.target), true
}

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

// stabilize is stabilizeRecommendationWithBehaviors with no window upward.
func (h *hpa) stabilize(cur, desired, now int) int {
	most := desired
	keep := h.recommended[:0]
	for _, r := range h.recommended {
		if now-r.at < h.window {
			most = max(most, r.replicas)
			keep = append(keep, r)
		}
	}
	h.recommended = append(keep, recommendation{now, desired})
	return max(min(cur, most), desired)
}

// limit is convertDesiredReplicasWithBehaviorRate with the default policies.
func (h *hpa) limit(cur, desired, now int) int {
	h.ups, h.downs = recent(h.ups, now), recent(h.downs, now)
	start := cur - changes(h.ups) + changes(h.downs)
	switch {
	case desired > cur:
		most := max(start+ratePods, ceil(float64(start)*2))
		desired = min(desired, max(cur, most), h.max)
	case desired < cur:
		desired = max(desired, h.min) // 100 % in 15 s is no limit
	}
	return min(max(desired, h.min), h.max)
}

func recent(e []scaleEvent, now int) []scaleEvent {
	keep := e[:0]
	for _, x := range e {
		if now-x.at < ratePeriod {
			keep = append(keep, x)
		}
	}
	return keep
}

func changes(e []scaleEvent) (n int) {
	for _, x := range e {
		n += x.change
	}
	return n
}

// ceil is the calculator's, which rounds up what a division left over as well.
func ceil(x float64) int { return int(math.Ceil(min(x, 1e6))) }
