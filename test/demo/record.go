// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// sample is one workload at one moment of the demo.
type sample struct {
	at       time.Duration // since the load began
	offered  float64       // requests a second
	need     int           // replicas that the load needs at the target
	replicas int           // spec.replicas
	serving  int
	util     float64 // percent, of the serving replicas
	queue    float64 // requests waiting
	rejected float64 // requests turned away since the sample before
	ended    float64 // requests that ended so far
	missed   float64 // and those of them that were turned away or over a limit of the objective
}

// maxSamples bounds the samples of a demo without an end: five per second for more
// than an hour.
const maxSamples = 20_000

// track holds the recorded samples of one workload.
type track struct {
	name    string
	least   int           // minReplicas
	full    float64       // as in scenario
	window  time.Duration // for how long a need counts
	now     sample        // the newest, also of before the load began
	samples []sample      // since the load began
}

func (t *track) add(s sample) {
	t.now = s
	if len(t.samples) >= maxSamples {
		t.samples = append(t.samples[:0], t.samples[maxSamples/2:]...)
	}
	t.samples = append(t.samples, s)
}

// summary is the result of one workload. Durations of events that never happened have
// known false.
type summary struct {
	first, end      int // replicas at the beginning and at the end
	need, peak      int // highest of each
	peakServing     int
	over            sample // where the replicas most exceeded what bound allows; at < 0: nowhere
	scaleUp         moment // from the load's rise to the first scale-up
	served          moment // from the load's rise until the peak's need was served
	back            moment // from the load's fall until the least replicas were left for good
	overTarget      time.Duration
	rejected        float64
	missed          float64 // share of the requests
	replicaSeconds  float64
	lowestAfterPeak int
}

// moment is a duration until an event that may not have happened.
type moment struct {
	d     time.Duration
	known bool
}

func (m moment) String() string {
	if !m.known {
		return "never"
	}
	return fmt.Sprintf("%.1f s", m.d.Seconds())
}

// overTolerance is how far above the target counts as over it: an autoscaler's
// usual tolerance.
const overTolerance = 1.1

// allowance is how many times the need a workload may have, and needWindow for
// how long a need counts after it has fallen: an autoscaler that stabilises,
// and for no less than a replica takes to start, goes no earlier; ten seconds
// are for slow machines.
const (
	allowance  = 1.5
	needWindow = max(stabilization, startup) + 10*time.Second
)

// planWindow is needWindow of an objective: before it knows the load, it keeps replicas for six starts after the last two of
// its steps of 15 s.
func planWindow(startup time.Duration) time.Duration { return 6*startup + 40*time.Second }

// summarise returns the summary of the samples.
func (t *track) summarise() summary {
	s := summary{over: sample{at: -1}}
	if len(t.samples) == 0 {
		return s
	}
	s.first, s.end = t.samples[0].replicas, t.now.replicas
	rise, fall := -1, -1
	for i, x := range t.samples {
		if x.need > t.least {
			if rise < 0 {
				rise = i
			}
			fall = i + 1
		}
		s.need, s.peak, s.peakServing = max(s.need, x.need), max(s.peak, x.replicas), max(s.peakServing, x.serving)
		s.rejected += x.rejected
		if i > 0 {
			dt := x.at - t.samples[i-1].at
			s.replicaSeconds += dt.Seconds() * float64(x.replicas)
			if x.util > t.over() {
				s.overTarget += dt
			}
		}
	}
	if from, to := t.samples[0], t.now; to.ended > from.ended {
		s.missed = (to.missed - from.missed) / (to.ended - from.ended)
	}
	s.moments(t.samples, t.least, rise, fall)
	s.bound(t.samples, t.least, cmp.Or(t.window, needWindow))
	s.lowestAfterPeak = s.peak
	peaked := false
	for _, x := range t.samples {
		if peaked = peaked || x.replicas == s.peak; peaked {
			s.lowestAfterPeak = min(s.lowestAfterPeak, x.replicas)
		}
	}
	return s
}

// over is the utilisation, in percent, beyond which the workload is overloaded: beyond the target with its tolerance, or
// where requests miss a limit.
func (t *track) over() float64 {
	if t.full > target {
		return t.full
	}
	return target * overTolerance
}

// moments finds when the workload followed a load that rose at sample rise and
// had fallen at sample fall; negative where it did not.
func (s *summary) moments(all []sample, least, rise, fall int) {
	if rise < 0 {
		return
	}
	for _, x := range all[rise:] {
		if !s.scaleUp.known && x.replicas > least {
			s.scaleUp = moment{x.at - all[rise].at, true}
		}
		if !s.served.known && x.serving >= s.need {
			s.served = moment{x.at - all[rise].at, true}
		}
	}
	if fall >= len(all) || s.peak <= least {
		return
	}
	for i := len(all) - 1; i >= fall && all[i].replicas == least; i-- {
		s.back = moment{all[i].at - all[fall].at, true}
	}
}

// bound finds replicas beyond the allowance over the need of a window, and beyond the least.
func (s *summary) bound(all []sample, least int, window time.Duration) {
	from, worst := 0, 0.0
	for i, x := range all {
		for all[from].at < x.at-window {
			from++
		}
		most := 0
		for _, y := range all[from : i+1] {
			most = max(most, y.need)
		}
		if excess := float64(x.replicas) - max(math.Ceil(allowance*float64(most)), float64(least)); excess > worst {
			worst, s.over = excess, x
			s.over.need = most
		}
	}
}

// verdict returns the reason why the demo failed; empty: it succeeded. With a recorded
// load, which may need fewer than 5 replicas or end at another level, it is sufficient
// that the replicas followed the load up and down. Beside the usual chain, which need not follow,
// the objective has to be kept on the built-in load.
func verdict(gpuPilot, hpa summary, least int, recorded, chained bool) []string {
	var bad []string
	say := func(format string, a ...any) { bad = append(bad, fmt.Sprintf(format, a...)) }
	each := func(name string, s summary) {
		switch {
		case recorded:
			if s.peak <= s.first {
				say("%s was never scaled up", name)
			}
			if s.lowestAfterPeak >= s.peak {
				say("%s was never scaled down", name)
			}
		default:
			if s.first != least {
				say("%s began with %d replicas, not %d", name, s.first, least)
			}
			if s.need < 5 {
				say("the load needed only %d replicas, not 5 or more", s.need)
			}
			if s.peak < s.need {
				say("%s reached %d replicas, not the %d that the load needed", name, s.peak, s.need)
			}
			if s.end != least {
				say("%s ended with %d replicas, not %d", name, s.end, least)
			}
		}
	}
	each(llm, gpuPilot)
	if !chained {
		each(classic, hpa)
	}
	if chained && !recorded && gpuPilot.missed > allowedMisses {
		say("%s missed the objective of %s: %s of its requests were beyond a limit", llm, objective, percent(gpuPilot.missed))
	}
	if o := gpuPilot.over; o.at >= 0 {
		say("%s had %d replicas at %s, more than %.1f times the %d needed", llm, o.replicas, clock(o.at), allowance, o.need)
	}
	return bad
}

// clock is a time since the load began as mm:ss.
func clock(d time.Duration) string {
	s := int(max(0, d).Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}
