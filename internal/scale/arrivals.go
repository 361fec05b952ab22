// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/trend"
)

// ArrivalModel is what is learned about the requests behind a Batching signal:
// the arrival rate, and the rate that one replica can take. While a server
// keeps up, its number of requests in flight shows the load. Once it does not,
// that number grows for as long as the overload lasts, and only the arrival
// rate still shows the load.
type ArrivalModel struct {
	Since  time.Time `json:"since"`  // start of the average in Rate
	At     time.Time `json:"at"`     // of the last value
	Rate   float64   `json:"rate"`   // requests/s that arrive, averaged over the time that a request stays
	Target float64   `json:"target"` // the signal's target that ReplicaSum was counted with

	// Sums over the seconds in which the servers kept up, with older seconds
	// weighing less.
	ReplicaSum  float64 `json:"replicaSum"`        // replica-seconds that the requests in flight asked for
	ArrivedSum  float64 `json:"arrivedSum"`        // requests that arrived
	InFlightSum float64 `json:"inFlightSum"`       // request-seconds in flight
	Seconds     float64 `json:"seconds,omitempty"` // seconds in the sums
}

const (
	// arrivalMemory is the time constant of the sums: the cost of a request changes
	// with its sender.
	arrivalMemory = 15 * time.Minute
	// leastArrived is how many requests the sums must hold before they are used.
	leastArrived = 20
	// leastRateSpan is the shortest time over which the rate is averaged, and
	// longestStay the longest. During one request's stay as many requests arrive as
	// are in flight. Over that time both numbers are equally noisy, and a shorter
	// average only adds noise. Requests that stay longer than longestStay are not
	// covered: their load shows in flight.
	leastRateSpan, longestStay = 5 * time.Second, 2 * time.Minute
	// keepsUp is the multiple of its target up to which a replica is taken to keep
	// up with its requests.
	keepsUp = 1.5
	// mostFromArrivals bounds the demand by arrivals, as a multiple of the demand by
	// requests in flight while these are within the target. Many cheap requests look
	// like an overload at first, but do not raise the number in flight.
	mostFromArrivals = 2.0
	// mostArrivals is the rate, in requests/s, above which a reading is invalid.
	mostArrivals = 1e6
)

// stay is the mean time that a request stays, in seconds (Little's law).
func (a *ArrivalModel) stay() float64 { return a.InFlightSum / a.ArrivedSum }

// rateSpan is the time over which the rate is averaged.
func (a *ArrivalModel) rateSpan() time.Duration {
	if a.ArrivedSum < leastArrived {
		return leastRateSpan
	}
	stay := min(a.stay(), longestStay.Seconds())
	return max(leastRateSpan, time.Duration(stay*float64(time.Second)))
}

// next is the model after a rate was read at now, with the replicas' current
// capacity.
func (a ArrivalModel) next(rate float64, now time.Time, takes *capacity) ArrivalModel {
	dt := now.Sub(a.At)
	if a.At.IsZero() || dt < 0 || dt > trend.Gap {
		a.Rate, a.Since = rate, now
	} else {
		a.Rate += (rate - a.Rate) * trend.Weight(dt, a.rateSpan())
	}
	if a.Target > 0 && a.Target != takes.target {
		a.ReplicaSum *= takes.load(a.Target) // the load of a replica at its old target
	}
	a.Target, a.At = takes.target, now
	return a
}

// learn adds dt to the sums, during which the requests in flight asked for this
// many replicas.
func (a *ArrivalModel) learn(replicas, inFlight, rate float64, dt time.Duration) {
	keep, seconds := 1-trend.Weight(dt, arrivalMemory), dt.Seconds()
	a.ReplicaSum = a.ReplicaSum*keep + replicas*seconds
	a.ArrivedSum = a.ArrivedSum*keep + rate*seconds
	a.InFlightSum = a.InFlightSum*keep + inFlight*seconds
	a.Seconds = a.Seconds*keep + seconds
}

// capacity is the requests/s that one replica takes at its target; 0: not
// learned yet.
func (a *ArrivalModel) capacity() float64 {
	if a.ArrivedSum < leastArrived || !(a.ReplicaSum > 0) {
		return 0
	}
	return a.ArrivedSum / a.ReplicaSum
}

// demand is how many replicas the arrival rate needs; 0: not known.
func (a *ArrivalModel) demand(now time.Time) float64 {
	if a.ArrivedSum < leastArrived || a.stay() > longestStay.Seconds() || now.Sub(a.Since) < a.rateSpan() {
		return 0
	}
	return min(a.Rate*a.ReplicaSum/a.ArrivedSum, trend.Most)
}

// arrivals is what is known about a signal's requests, for sentences.
type arrivals struct {
	rate     float64       // requests/s over the workload; 0: not known
	capacity float64       // requests/s per replica; 0: not learned yet
	learned  time.Duration // how much time the capacity was learned from
	raised   bool          // the arrival rate needs more than the requests in flight
	limited  bool          // and more than mostFromArrivals allows
}

// raiseToArrivals raises the demand to what the arrival rate needs. It never
// lowers it: after a burst the rate says nothing about the requests that are
// still in flight.
func (e *evaluation) raiseToArrivals(m measure) (measure, arrivals) {
	rate, readable := e.arrivalRate()
	if readable == 0 || e.signal.Law != Batching || m.of == 0 {
		return m, arrivals{}
	}
	before := e.state.Arrivals
	model := before.next(rate, e.now, &e.takes)
	// The demand is computed before this reading is learned from, so that a higher
	// rate never needs fewer replicas.
	demand := model.demand(e.now)
	a := arrivals{rate: model.Rate, capacity: model.capacity(), learned: time.Duration(model.Seconds * float64(time.Second))}
	if most := mostFromArrivals * m.up; m.value <= e.takes.target && demand > most {
		demand, a.limited = most, true
	}
	if dt := e.now.Sub(before.At); dt > 0 && dt <= trend.Gap && readable == m.fresh && m.value <= keepsUp*e.takes.target {
		model.learn(m.up, m.value*float64(m.fresh), rate, dt)
	}
	e.state.Arrivals = model
	// Replicas without an arrival rate count as idle on the way up. On the way down
	// they count as the mean of the others.
	m.down = max(m.down, demand*float64(max(m.of, readable))/float64(readable))
	if demand > m.up {
		m.up, a.raised = demand, true
	}
	return m, a
}

// arrivalRate is the requests/s of all replicas that have a valid rate, and
// their number.
func (e *evaluation) arrivalRate() (sum float64, readable int32) {
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		if r := pod.arrivals(e.i); e.isValid(pod, r) {
			sum, readable = sum+min(r.Value, mostArrivals), readable+1
		}
	}
	return sum, readable
}
