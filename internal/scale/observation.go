// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"time"
)

// Phase is where a replica is in its life.
type Phase uint8

// The phases of a replica.
const (
	Serving       Phase = iota // ready, and warm
	Starting                   // scheduled or schedulable, not serving yet
	Unschedulable              // no node takes it: not capacity on the way
	Terminating                // on its way out, counted nowhere
)

// Reading is one value of one signal. The zero Reading is absent.
type Reading struct {
	Value float64   // in the signal's unit
	At    time.Time // when it was measured, not when it was fetched
	OK    bool      // false: there is none
	// MaxAge is the age up to which it counts, where its source measures so
	// seldom that it is more than the policy's; 0: the policy's.
	MaxAge time.Duration
}

// fresh says whether the reading counts at now. A stamp from the future counts
// as new: clocks of nodes differ.
func (r Reading) fresh(now time.Time, maxAge time.Duration) bool {
	return r.OK && !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0) && now.Sub(r.At) <= max(maxAge, r.MaxAge)
}

// Replica is one pod of the workload.
type Replica struct {
	Name     string
	Phase    Phase
	Since    time.Time // when it came into its phase; for Starting, when it was created
	Readings []Reading // one for each of Policy.Signals, in that order; shorter: the rest is absent

	// Paces are how fast its batch advances, one for each of Policy.Signals, absent
	// where nothing is to be learned.
	Paces []Pace

	// Arrivals are the requests/s that have come to it of late, one for each of
	// Policy.Signals, absent where nothing tells.
	Arrivals []Reading
}

// Pace is how fast an inference server's batch advanced over the seconds before
// At. The zero Pace is absent.
type Pace struct {
	Batch   float64 // sequences that decoded at a time, on the mean
	Latency float64 // seconds that one waited for a token, on the mean
	First   float64 // seconds that requests waited for their first token, on the mean of those that got it
	Firsts  float64 // how many a second that were; 0: none, or not told
	At      time.Time
	OK      bool
}

// reading returns the replica's reading of signal i.
func (r *Replica) reading(i int) Reading {
	if i < len(r.Readings) {
		return r.Readings[i]
	}
	return Reading{}
}

// arrivals returns the requests/s that come to the replica, of signal i.
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
	Totals   []Reading // for the workload as a whole, one for each of Policy.Signals; from a query
}

func (o *Observation) total(i int) Reading {
	if i < len(o.Totals) {
		return o.Totals[i]
	}
	return Reading{}
}

// census counts the replicas by what they are worth.
type census struct {
	serving, starting, expired, unschedulable int32
	wait                                      time.Duration // until the youngest creditable replica should serve; 0 if unknown
}

func takeCensus(p *Policy, o *Observation, now time.Time) census {
	var c census
	for i := range o.Pods {
		pod := &o.Pods[i]
		switch pod.Phase {
		case Serving:
			c.serving++
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
	// Pods that the workload controller has yet to create are on the way too.
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
