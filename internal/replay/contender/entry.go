// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// Entry is an autoscaler with its settings.
type Entry struct {
	Name   string
	Family Family
	Class  Class
	// Given is true for the user's own settings of a peer, which are compared with the
	// peers as our policies are.
	Given bool

	// Objective is the share of the requests that the policy promises, below 1; 0: none.
	Objective float64

	Max int32 // maxReplicas of our policy; 0: unknown

	// Notes says in what the replay of our policy differs from a cluster, and Untimed also does where
	// Replay.HasTimes is false.
	Notes, Untimed []string

	// Rates is true if a peer reads rates of the server.
	Rates bool

	// New returns the autoscaler for one replay.
	New func(*Replay) (service.Autoscaler, error)
}

// GaugesOnly reports whether the autoscaler reads only gauges of the server: no rates, and
// no GPU activity. Objects of the user may read both.
func (e *Entry) GaugesOnly() bool {
	return e.Family != Ours && e.Class != OnGPU && !e.Given && !e.Rates
}

// Replay is what an autoscaler may know of a replay.
type Replay struct {
	Model    *service.Model
	Seed     uint64
	Min, Max int // replicas
	// Scaled reports whether the load is scaled. The bounds of a policy are not applied to
	// a scaled load.
	Scaled   bool
	Start    time.Time      // of the recorded load; zero: unknown
	Need     []float64      // replicas that the load needs, per bin of service.NeedSeconds
	PeakNeed float64        // highest need after the warm-up
	Past     []promise.Load // the load before, in steps of promise.StepSeconds
	// Scrape is the interval at which Prometheus reads the servers for the peers of
	// LLMPeers, in seconds; 0 and 1: no lag.
	Scrape int
	// Startup is the median time of a start, in seconds, for peers that are configured with it.
	Startup float64
}

// HasTimes reports whether schedules bound a policy.
func (r *Replay) HasTimes() bool { return !r.Scaled && !r.Start.IsZero() }

// Family is a kind of autoscaler.
type Family string

// The families.
const (
	Ours               Family = "ours"
	HPA                Family = "hpa"
	KEDA               Family = "keda"
	KPA                Family = "kpa"       // Knative's
	Named              Family = "llm"       // of LLMPeers
	Published          Family = "published" // of PublishedPeers
	FixedReplicas      Family = "fixed"
	OracleSchedule     Family = "oracle"
	ReactiveAutoscaler Family = "reactive"
)

// Class is what an autoscaler reads. It is compared with peers of its class.
type Class string

// The classes.
const (
	OnRequests Class = "requests" // the server's queue and running requests
	OnGPU      Class = "gpu"      // GPU utilisation and activity
	OnNothing  Class = ""         // references, such as the oracle
)
