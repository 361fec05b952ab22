// SPDX-License-Identifier: Apache-2.0

package peers

import "math"

// KPA is Knative's pod autoscaler (serving 1.24) on concurrency, for a revision
// that is reachable: the concurrency averaged over a stable and a panic window,
// an absolute number of replicas, ready pods bounding only the step. NewKPA
// makes one; bounds on the replicas are its caller's.
type KPA struct {
	target float64 // requests per replica, after the utilisation factor
	window int     // stable, seconds
	delay  int     // scale-down-delay, seconds

	stable, burst average
	panicking     bool
	panicAt       int
	panicPods     int
	wanted        []stamped // one a tick, within the delay
}

// KPATick is how often a KPA decides, in seconds; it records every second.
const KPATick = 2

// The defaults of Knative's config-autoscaler.
const (
	panicShare     = 10 // the panic window is a tenth of the stable window, rounded
	panicThreshold = 2.0
	maxUpRate      = 1000
	maxDownRate    = 2
)

// NewKPA is a KPA at second now with so many ready pods. More than one and it
// begins in panic, so as not to go down before it knows anything.
func NewKPA(target float64, window, delay, now, ready int) *KPA {
	return &KPA{
		target: target, window: window, delay: delay,
		stable: newAverage(window), burst: newAverage(max(1, (window+panicShare/2)/panicShare)),
		panicking: ready > 1, panicAt: now, panicPods: ready,
	}
}

// Record takes in the concurrency of all pods and of the activator in a second.
// Where there is neither, nothing is recorded.
func (k *KPA) Record(now int, concurrency float64) {
	k.stable.record(now, concurrency)
	k.burst.record(now, concurrency)
}

// Scale returns the replicas that it wants with so many ready pods; ok is false
// where it has no data, and all stays as it is.
func (k *KPA) Scale(now, ready int) (replicas int, ok bool) {
	if k.stable.empty(now) {
		return 0, false
	}
	n := math.Max(1, float64(ready))
	up, down := math.Ceil(maxUpRate*n), math.Floor(n/maxDownRate)
	inPanic := math.Ceil(k.burst.mean(now) / k.target)
	desired := int(min(max(math.Ceil(k.stable.mean(now)/k.target), down), up))
	switch {
	case inPanic/n >= panicThreshold:
		k.panicking, k.panicAt = true, now
	case k.panicking && now-k.panicAt > k.window: // the surge has reached the stable window
		k.panicking, k.panicPods = false, 0
	}
	if k.panicking { // nothing goes down
		k.panicPods = max(k.panicPods, desired, int(min(max(inPanic, down), up)))
		desired = k.panicPods
	}
	return k.delayed(now, desired), true
}

// delayed is the most that was wanted within the delay.
func (k *KPA) delayed(now, desired int) int {
	if k.delay == 0 {
		return desired
	}
	kept, most := k.wanted[:0], desired
	for _, w := range k.wanted {
		if now-w.at < k.delay {
			kept = append(kept, w)
			most = max(most, w.n)
		}
	}
	k.wanted = append(kept, stamped{now, desired})
	return most
}

// average is the mean over a window of seconds. A second without a record counts
// as zero between two with one, and not at all at either end; a window without
// any begins anew.
type average struct {
	ring        []float64 // by second
	begun       bool
	first, last int // seconds with a record
}

func newAverage(window int) average { return average{ring: make([]float64, window)} }

func (a *average) record(now int, v float64) {
	if !a.begun || now-a.last >= len(a.ring) {
		clear(a.ring)
		a.begun, a.first = true, now
	} else {
		for s := a.last + 1; s <= now; s++ {
			a.ring[s%len(a.ring)] = 0
		}
	}
	a.ring[now%len(a.ring)] += v
	a.last = now
}

// empty says whether the window has no record, and one second more has none.
func (a *average) empty(now int) bool { return !a.begun || now-a.last > len(a.ring) }

func (a *average) mean(now int) float64 {
	window := len(a.ring)
	since := now - a.last
	if !a.begun || since >= window {
		return 0
	}
	sum := 0.0
	for s := max(a.first, now-window+1); s <= a.last; s++ {
		sum += a.ring[s%window]
	}
	const millionth = 1e6 // what the real one rounds to
	return math.Round(sum/float64(min(a.last-a.first+1, window-since))*millionth) / millionth
}
