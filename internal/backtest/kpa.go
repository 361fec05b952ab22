// SPDX-License-Identifier: Apache-2.0

package backtest

import "math"

// kpa is Knative's pod autoscaler (serving 1.23, pkg/autoscaler/scaling's
// Scale): concurrency averaged over a stable and a panic window, an absolute
// number of replicas, ready pods bounding only the step.
type kpa struct {
	target   float64 // requests per replica, after the utilisation factor
	window   int     // stable, seconds; the panic window is a tenth
	delay    int     // scale-down-delay, seconds
	min, max int

	ring      [maxStable]float64 // concurrency, by second
	begun     bool
	panicking bool
	panicAt   int
	panicPods int
	wanted    []recommendation
}

const (
	maxStable      = 128
	kpaTick        = 2
	panicThreshold = 2.0
	maxUpRate      = 1000
	maxDownRate    = 2
)

func (k *kpa) decide(c *cluster, now int) (int, []string) {
	seen, n := c.total(c.at(now-1), Concurrency, 0)
	k.ring[now%maxStable] = seen + float64(c.buffer.len())
	if now%kpaTick != 0 || n == 0 && c.buffer.len() == 0 {
		return -1, nil
	}
	stable := k.mean(now, k.window)
	burst := k.mean(now, max(k.window/10, 1))
	ready := max(1, len(c.ready))
	if !k.begun { // it begins in panic, so as not to go down before it knows anything
		k.begun, k.panicking, k.panicAt, k.panicPods = true, ready > 1, now, ready
	}
	up, down := ceil(maxUpRate*float64(ready)), ready/maxDownRate
	desired := min(max(ceil(stable/k.target), down), up)
	inPanic := ceil(burst / k.target)
	over := float64(inPanic)/float64(ready) >= panicThreshold
	inPanic = min(max(inPanic, down), up)
	switch {
	case over:
		k.panicking, k.panicAt = true, now
	case k.panicking && now-k.panicAt > k.window: // the surge has reached the stable window
		k.panicking, k.panicPods = false, 0
	}
	if k.panicking {
		k.panicPods = max(k.panicPods, inPanic, desired) // in panic nothing goes down
		desired = k.panicPods
	}
	return min(max(k.delayed(desired, now), k.min), k.max), nil
}

// mean is over the seconds that there are of the window.
func (k *kpa) mean(now, window int) float64 {
	n := min(window, now)
	sum := 0.0
	for i := range n {
		sum += k.ring[(now-i)%maxStable]
	}
	return sum / math.Max(1, float64(n))
}

// delayed is the most that was wanted within the delay.
func (k *kpa) delayed(desired, now int) int {
	keep, most := k.wanted[:0], desired
	for _, w := range k.wanted {
		if now-w.at < k.delay {
			keep = append(keep, w)
			most = max(most, w.replicas)
		}
	}
	k.wanted = append(keep, recommendation{now, desired})
	return most
}
