// SPDX-License-Identifier: Apache-2.0

package peers

import "math"

// KPA models Knative's pod autoscaler (serving 1.24) on concurrency, for a reachable
// revision. It averages the concurrency over a stable and a panic window; the number
// of ready pods only limits the step. NewKPA makes one. The caller applies the
// minimum and maximum of replicas.
type KPA struct {
	target float64 // requests per replica, after the utilisation factor
	window int     // stable, seconds
	delay  int     // scale-down-delay, seconds

	stable, burst   average
	panicking       bool
	panicSince      int
	panicReplicas   int
	recommendations []timedCount // one per tick, within the delay
}

// KPATick is how often a KPA decides, in seconds; it records every second.
const KPATick = 2

// The defaults of Knative's config-autoscaler.
const (
	panicWindowDivisor = 10 // the panic window is a tenth of the stable window, rounded
	panicThreshold     = 2.0
	maxUpRate          = 1000
	maxDownRate        = 2
)

// NewKPA makes a KPA at second now. With more than one ready pod it starts in panic
// mode, so that it does not scale down before it has data.
func NewKPA(target float64, window, delay, now, ready int) *KPA {
	return &KPA{
		target: target, window: window, delay: delay,
		stable: newAverage(window), burst: newAverage(max(1, (window+panicWindowDivisor/2)/panicWindowDivisor)),
		panicking: ready > 1, panicSince: now, panicReplicas: ready,
	}
}

// Record adds the concurrency of all pods and of the activator in one second. It is
// not called for seconds without data.
func (k *KPA) Record(now int, concurrency float64) {
	k.stable.record(now, concurrency)
	k.burst.record(now, concurrency)
}

// Scale returns the desired replicas, given the number of ready pods. ok is false
// if there is no data; the replicas then stay unchanged.
func (k *KPA) Scale(now, ready int) (replicas int, ok bool) {
	if k.stable.isEmpty(now) {
		return 0, false
	}
	n := math.Max(1, float64(ready))
	up, down := math.Ceil(maxUpRate*n), math.Floor(n/maxDownRate)
	inPanic := math.Ceil(k.burst.mean(now) / k.target)
	desired := int(min(max(math.Ceil(k.stable.mean(now)/k.target), down), up))
	switch {
	case inPanic/n >= panicThreshold:
		k.panicking, k.panicSince = true, now
	case k.panicking && now-k.panicSince > k.window: // the surge has reached the stable window
		k.panicking, k.panicReplicas = false, 0
	}
	if k.panicking { // no scale-down
		k.panicReplicas = max(k.panicReplicas, desired, int(min(max(inPanic, down), up)))
		desired = k.panicReplicas
	}
	return k.applyDelay(now, desired), true
}

// applyDelay returns the highest recommendation within the scale-down delay.
func (k *KPA) applyDelay(now, desired int) int {
	if k.delay == 0 {
		return desired
	}
	kept, most := k.recommendations[:0], desired
	for _, w := range k.recommendations {
		if now-w.at < k.delay {
			kept = append(kept, w)
			most = max(most, w.n)
		}
	}
	k.recommendations = append(kept, timedCount{now, desired})
	return most
}

// average is the mean over a window of seconds. A second without a record counts as
// zero if it lies between two recorded seconds, and is left out at either end. A
// whole window without records resets the average.
type average struct {
	ring        []float64 // by second
	hasRecord   bool
	first, last int // seconds with a record
}

func newAverage(window int) average { return average{ring: make([]float64, window)} }

func (a *average) record(now int, v float64) {
	if !a.hasRecord || now-a.last >= len(a.ring) {
		clear(a.ring)
		a.hasRecord, a.first = true, now
	} else {
		for s := a.last + 1; s <= now; s++ {
			a.ring[s%len(a.ring)] = 0
		}
	}
	a.ring[now%len(a.ring)] += v
	a.last = now
}

// isEmpty reports whether the window and the second before it have no record.
func (a *average) isEmpty(now int) bool { return !a.hasRecord || now-a.last > len(a.ring) }

func (a *average) mean(now int) float64 {
	window := len(a.ring)
	since := now - a.last
	if !a.hasRecord || since >= window {
		return 0
	}
	sum := 0.0
	for s := max(a.first, now-window+1); s <= a.last; s++ {
		sum += a.ring[s%window]
	}
	const millionth = 1e6 // the real one rounds to millionths
	return math.Round(sum/float64(min(a.last-a.first+1, window-since))*millionth) / millionth
}
