// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/drain"
)

// Phase is the state of a replica.
type Phase uint8

// The phases of a replica.
const (
	Serving       Phase = iota // ready, and warm
	Starting                   // scheduled or schedulable, not serving yet: counted as capacity
	Unschedulable              // no node has room: not counted as capacity
	Terminating                // stopping, not counted
	Leaving                    // out of the endpoints before it is removed, not counted
)

// Reading is one value of one signal. The zero Reading is absent.
type Reading struct {
	Value float64   // in the signal's unit
	At    time.Time // when it was measured, not when it was fetched
	OK    bool      // false: absent
	// MaxAge is the age up to which it counts, if that is above the policy's: for
	// sources that measure seldom. 0: the policy's.
	MaxAge time.Duration
}

// fresh reports whether the reading is new enough at now. One with a time in the
// future is: the clocks of nodes differ.
func (r Reading) fresh(now time.Time, maxAge time.Duration) bool {
	return r.OK && !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0) && now.Sub(r.At) <= max(maxAge, r.MaxAge)
}

// Replica is one pod of the workload.
type Replica struct {
	Name     string
	Phase    Phase
	Version  string    // of its pod template, such as a hash; empty: not known
	Since    time.Time // start of its phase; for Starting, when it was created
	Readings []Reading // one for each of Policy.Signals, in that order; those beyond the end are absent

	// The rest is for Policy.Drain. Gated: it declares the readiness gate, so that it can
	// leave the endpoints while it runs. Out: it is no longer ready. InFlight has its requests,
	// Ordinal its place in an ordered workload, and Disrupts the PodDisruptionBudgets that
	// cover it.
	Gated, Out bool
	InFlight   Reading
	Ordinal    int32
	Disrupts   []string

	// Used, for Policy.Idle, is above 0 while a GPU is active or a request is in flight.
	Used Reading

	// Paces holds the latencies of its requests, one for each of Policy.Signals;
	// absent where the signal learns nothing.
	Paces []Pace

	// Arrivals holds the requests/s that arrived at it, one for each of
	// Policy.Signals; absent where requests are not counted.
	Arrivals []Reading
}

// Pace is how fast an inference server generated tokens over the seconds before
// At. The zero Pace is absent.
type Pace struct {
	Batch                float64 // mean number of sequences that decoded at a time
	TokenSeconds         float64 // mean time between a sequence's tokens
	FirstTokenSeconds    float64 // mean time to the first token, of the requests that got it
	FirstTokensPerSecond float64 // requests/s that got their first token; 0: none, or not known
	At                   time.Time
	OK                   bool

	// Counted is set if the server counts tokens and requests.
	Counted               bool
	PromptTokensPerSecond float64 // processed
	OutputTokensPerSecond float64 // generated
	EndedPerSecond        float64 // requests/s that were answered or aborted
	MissedPerSecond       float64 // of those, the ones that missed a limit or were aborted

	CacheUse         float64 // share of the KV cache that requests hold; 0: none, or not known
	Running, Waiting float64 // requests in the batch, and in the server's queue; 0: none, or not known
}

// reading returns the replica's reading of signal i.
func (r *Replica) reading(i int) Reading {
	if i < len(r.Readings) {
		return r.Readings[i]
	}
	return Reading{}
}

// arrivals returns the replica's arrival rate, in requests/s, of signal i.
func (r *Replica) arrivals(i int) Reading {
	if i < len(r.Arrivals) {
		return r.Arrivals[i]
	}
	return Reading{}
}

// pace returns the replica's pace for signal i.
func (r *Replica) pace(i int) Pace {
	if i < len(r.Paces) {
		return r.Paces[i]
	}
	return Pace{}
}

// Observation is what is known of a workload at one moment.
type Observation struct {
	Replicas int32     // spec.replicas of the scale target
	Pods     []Replica // its pods, in any order
	Version  string    // of the pods that are created now; empty: not known
	Totals   []Reading // from queries, for the workload as a whole; one for each of Policy.Signals

	Partner Reading // Decision.Own of the partner of Policy.Pair

	Ordered         bool           // its controller removes the highest ordinals
	Disruptions     []drain.Budget // for Policy.Drain
	DisruptionsLost bool           // they are not known
}

func (o *Observation) total(i int) Reading {
	if i < len(o.Totals) {
		return o.Totals[i]
	}
	return Reading{}
}

// UseReadings sets Used of the replicas from their readings: one is in use while one of them is
// above 0. It is for replays, which know no more.
func (o *Observation) UseReadings() {
	for i := range o.Pods {
		r := &o.Pods[i]
		for k, x := range r.Readings {
			if k == 0 || !x.OK || r.Used.OK && x.Value > r.Used.Value {
				r.Used = x
			}
			if !x.OK {
				break
			}
		}
	}
}

// census counts the replicas by phase.
type census struct {
	serving, unschedulable int32
	starting, expired      int32         // expired: starting for longer than the credit, not counted as capacity
	wait                   time.Duration // until the youngest starting replica should serve; 0: not known
	youngest               time.Time     // when the replica began to serve that did so last; zero: none serves
}

func takeCensus(p *Policy, o *Observation, now time.Time) census {
	var c census
	for i := range o.Pods {
		pod := &o.Pods[i]
		switch pod.Phase {
		case Serving:
			c.serving++
			if pod.Since.After(c.youngest) && !pod.Since.After(now) {
				c.youngest = pod.Since
			}
		case Unschedulable:
			c.unschedulable++
		case Starting:
			age := now.Sub(pod.Since)
			if age > p.credit() {
				c.expired++
				continue
			}
			c.starting++
			if p.Startup > age {
				c.wait = max(c.wait, p.Startup-age)
			}
		}
	}
	// Pods that the workload controller has yet to create count as starting.
	if missing := o.Replicas - int32(len(o.Pods)) + c.terminating(o); missing > 0 {
		c.starting += missing
	}
	return c
}

func (census) terminating(o *Observation) (n int32) {
	for i := range o.Pods {
		if o.Pods[i].Phase == Terminating {
			n++
		}
	}
	return n
}
