// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"time"
)

// Flow is what has been learned of the requests behind a Batching signal: how
// many come, and how many replicas one a second takes. While a server keeps up,
// its batch tells the load. Once it does not, the batch tells for how long that
// has been so, and only the requests that come still tell the load.
type Flow struct {
	Signal string    `json:"signal"`
	Since  time.Time `json:"since"` // when the rate began to be averaged
	At     time.Time `json:"at"`
	Rate   float64   `json:"rate"`   // requests/s that come, averaged over the time that one stays
	Target float64   `json:"target"` // at which Replicas were counted

	// Sums over the seconds in which the servers kept up, fading: of the replicas
	// that the batches asked for, of the requests that came, and of those there were.
	Replicas float64 `json:"replicas"`
	Came     float64 `json:"came"`
	There    float64 `json:"there"`

	// Seconds is for how long they were added up, fading likewise.
	Seconds float64 `json:"seconds,omitempty"`
}

const (
	// flowMemory is the time constant of the sums: what a request costs changes
	// with who sends it.
	flowMemory = 15 * time.Minute
	// flowLeast is how many requests must have come for the sums to tell anything.
	flowLeast = 20
	// flowSpan is the least time over which the rate is averaged, and longestStay
	// the most. As many requests come while one stays as there are in the batch, so
	// that over that time both numbers are equally noisy, and a shorter one only adds
	// noise. Requests that stay for longer leave their load behind in the batch.
	flowSpan, longestStay = 5 * time.Second, 2 * time.Minute
	// keepsUp is how many times its target a replica has at most while its server
	// is taken to keep up.
	keepsUp = 1.5
	// flowMost bounds what is wanted by what comes, as a multiple of what batches
	// ask for that are no larger than they should be: more requests that cost less
	// look like an overload at first, and make no batch grow.
	flowMost = 2.0
	// mostArrivals is the rate beyond which a reading is garbage.
	mostArrivals = 1e6
)

// stay is how long a request stays, in seconds, by Little's law.
func (f *Flow) stay() float64 { return f.There / f.Came }

// span is the time over which the rate is averaged.
func (f *Flow) span() time.Duration {
	if f.Came < flowLeast {
		return flowSpan
	}
	stay := min(f.stay(), longestStay.Seconds())
	return max(flowSpan, time.Duration(stay*float64(time.Second)))
}

// next is the flow after rate was seen at now, where replicas take so much.
func (f Flow) next(rate float64, now time.Time, takes *capacity) Flow {
	dt := now.Sub(f.At)
	if f.At.IsZero() || dt < 0 || dt > levelGap {
		f.Rate, f.Since = rate, now
	} else {
		f.Rate += (rate - f.Rate) * passed(dt, f.span())
	}
	if f.Target > 0 && f.Target != takes.target {
		f.Replicas *= takes.load(f.Target) // a replica at its old target
	}
	f.Target, f.At = takes.target, now
	return f
}

// learn takes in what the batches asked for and how many requests there were,
// while so many came for dt.
func (f *Flow) learn(replicas, there, rate float64, dt time.Duration) {
	keep, seconds := 1-passed(dt, flowMemory), dt.Seconds()
	f.Replicas = f.Replicas*keep + replicas*seconds
	f.Came = f.Came*keep + rate*seconds
	f.There = f.There*keep + there*seconds
	f.Seconds = f.Seconds*keep + seconds
}

// capacity is the requests/s that one replica takes at its target; 0: not
// learned yet.
func (f *Flow) capacity() float64 {
	if f.Came < flowLeast || !(f.Replicas > 0) {
		return 0
	}
	return f.Came / f.Replicas
}

// wants is how many replicas the requests that come take at now; 0: not known.
func (f *Flow) wants(now time.Time) float64 {
	if f.Came < flowLeast || f.stay() > longestStay.Seconds() || now.Sub(f.Since) < f.span() {
		return 0
	}
	return min(f.Rate*f.Replicas/f.Came, mostDemand)
}

// arrivals is what is known of a signal's requests, for sentences.
type arrivals struct {
	rate     float64       // requests/s over the workload; 0: not known
	capacity float64       // requests/s per replica; 0: not learned yet
	watched  time.Duration // how long the capacity was learned
	raised   bool          // the requests that arrive need more than the batches do
	limited  bool          // and more than is granted
}

// arriving raises what signal i wants to what the requests that come take. It
// never lowers: between a burst and its end their number tells nothing of what
// is still to be worked off.
func (e *engine) arriving(i int, m measure, takes *capacity, before Flow) (_ measure, a arrivals) {
	sum, told := 0.0, int32(0)
	for k := range e.o.Pods {
		pod := &e.o.Pods[k]
		if r := pod.arrivals(i); e.counts(pod, r) {
			sum, told = sum+min(r.Value, mostArrivals), told+1
		}
	}
	if told == 0 || e.p.Signals[i].Law != Batching || m.of == 0 {
		return m, a
	}
	flow := before.next(sum, e.now, takes)
	defer func() { e.flows = append(e.flows, flow) }()
	// By what was known before, so that more requests never take fewer replicas.
	wants := flow.wants(e.now)
	a = arrivals{rate: flow.Rate, capacity: flow.capacity(), watched: time.Duration(flow.Seconds * float64(time.Second))}
	if most := flowMost * m.up; m.value <= takes.target && wants > most {
		wants, a.limited = most, true
	}
	if dt := e.now.Sub(before.At); dt > 0 && dt <= levelGap && told == m.fresh && m.value <= keepsUp*takes.target {
		flow.learn(m.up, m.value*float64(m.fresh), sum, dt)
	}
	// Those that do not tell carry nothing when scaling up, and their share of what
	// comes when scaling down.
	m.down = max(m.down, wants*float64(max(m.of, told))/float64(told))
	if wants <= m.up {
		return m, a
	}
	m.up, a.raised = wants, true
	return m, a
}

// keptFlows are what is known of the policy's signals, also of those that could
// not be read now: a page that is late once must not cost what was learned.
func (e *engine) keptFlows(before *State) []Flow {
	flows := e.flows
	for i := range e.p.Signals {
		name := e.p.Signals[i].Name
		f := before.flow(name)
		if !f.At.IsZero() && !slices.ContainsFunc(flows, func(x Flow) bool { return x.Signal == name }) {
			flows = append(flows, f)
		}
	}
	return flows
}
