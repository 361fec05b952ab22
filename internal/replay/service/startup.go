// SPDX-License-Identifier: Apache-2.0

package service

import (
	"math"
	"math/rand/v2"
)

// Startup is the distribution of the times that pods take to start. Medians are those of
// log-normal distributions.
type Startup struct {
	Median float64 // seconds from the binding to a node until the pod is ready
	Sigma  float64 // standard deviation of the logarithm

	// NodeShare of the pods are unschedulable until a new node joins, which takes
	// NodeMedian seconds.
	NodeShare, NodeMedian float64

	// ShortagesPerDay is how often the cluster is full. No pod is bound to a node for
	// ShortageMedian seconds then.
	ShortagesPerDay, ShortageMedian float64
}

// DefaultStartup returns the default distribution with this median in seconds. A tenth of
// the pods wait 90 s for a node, and once a day the cluster is full for ten minutes.
func DefaultStartup(median float64) Startup {
	return Startup{Median: median, Sigma: 0.25, NodeShare: 0.1, NodeMedian: 90, ShortagesPerDay: 1, ShortageMedian: 600}
}

const (
	// pullShare is the share of a start before the containers run.
	pullShare = 0.15
	// warmupShare is the share at the end of a start in which the GPUs are busy: the
	// server captures its CUDA graphs.
	warmupShare = 0.2
)

// interval is a time interval in seconds.
type interval struct{ from, to float64 }

// shortages draws the intervals in which no pod is bound to a node.
func (s *Startup) shortages(seed uint64, seconds float64) (out []interval) {
	if s.ShortagesPerDay <= 0 {
		return nil
	}
	rng := rand.New(rand.NewPCG(seed, 0x5be11))
	for at := rng.ExpFloat64() * 86400 / s.ShortagesPerDay; at < seconds; at += rng.ExpFloat64() * 86400 / s.ShortagesPerDay {
		end := at + logNormal(rng, s.ShortageMedian, 0.5)
		out = append(out, interval{at, end})
		at = end
	}
	return out
}

func logNormal(rng *rand.Rand, median, sigma float64) float64 {
	return median * math.Exp(sigma*rng.NormFloat64())
}

// StartDelay is the random part of one pod's start, in seconds.
type StartDelay struct {
	Node  float64 // until a node has room
	Start float64 // from the binding until the pod is ready
}

// draw draws the delays of a pod from the seed and its number only. So they are the same
// for all autoscalers.
func (s *Startup) draw(seed uint64, id int) (d StartDelay) {
	rng := rand.New(rand.NewPCG(seed, uint64(id)))
	d.Start = logNormal(rng, s.Median, s.Sigma)
	if rng.Float64() < s.NodeShare {
		d.Node = logNormal(rng, s.NodeMedian, 0.4)
	}
	return d
}

// StartTimes are the seconds at which a pod is bound to a node, its containers run, and it
// is ready.
type StartTimes struct{ Bound, Running, Ready float64 }

// times returns the times of a pod that is created at now.
func (d StartDelay) times(now float64, shortages []interval) StartTimes {
	bound := now + d.Node
	for _, s := range shortages {
		if bound >= s.from && bound < s.to {
			bound = s.to
		}
	}
	bound = math.Ceil(bound)
	return StartTimes{bound, math.Ceil(bound + d.Start*pullShare), math.Ceil(bound + max(1, d.Start))}
}
