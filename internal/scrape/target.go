// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"net/url"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/series"
)

// Kind is what answers at a target.
type Kind uint8

// The kinds of targets.
const (
	Agent Kind = iota // our agent: understands ?name[]= and says when it collected
	DCGM              // any other exporter of GPUs
	Pod               // a pod's own metrics, such as an inference server's
)

// Target is one exposition to be scraped.
type Target struct {
	Name   string  // unique; the name of the series.Target too
	URL    url.URL // such as http://10.1.2.3:9400/metrics; its host is an IP address and a port
	Kind   Kind
	Labels series.TargetLabels

	Fields  gpu.FieldSet // of an Agent or DCGM: those in use; empty: all
	Metrics []Metric     // of a Pod: those in use
}

func (t *Target) equal(o *Target) bool {
	return t.Name == o.Name && t.URL == o.URL && t.Kind == o.Kind && t.Labels == o.Labels &&
		t.Fields == o.Fields && slices.Equal(t.Metrics, o.Metrics)
}

// State is how a target fares, for people.
type State struct {
	Name string
	URL  string
	Kind Kind

	LastSuccess time.Time     // when samples last arrived; zero: never
	Collected   time.Time     // the time of these samples
	Lag         time.Duration // from their collection to their arrival
	Skew        time.Duration // how far the target's clock is ahead of ours, where that is too far for its times to be used as they are
	Took        time.Duration // the last request
	Interval    time.Duration // the agent's own, or learned from when values change; zero: not known
	Freshness   string        // how its values are known to be new, such as FreshByEnergy; empty of a Pod, which measures when it is asked
	Waiting     bool          // its values have not changed since the first scrape, and may be old
	Frozen      int           // devices whose values have not changed for too long
	Samples     int           // of the last success
	BadLines    int           // of the last page, left out
	BadLine     string        // the first of them: its number and what is wrong with it
	OutOfRange  int           // values of the last page, left out

	Err      error     // of the last scrape; nil after a success
	ErrSince time.Time // since when there has been no success
	Failures int       // since then
}

// Up reports whether the values of the last scrape can be used.
func (s *State) Up() bool { return s.Problem() == "" && !s.LastSuccess.IsZero() }

// Problem is the reason why there are no values to use; empty if there are, and before the
// first scrape.
func (s *State) Problem() string {
	switch {
	case s.Err != nil:
		return s.Err.Error()
	case s.Waiting:
		return "its values have not changed since the first scrape; until they do they may be old"
	}
	return ""
}
