// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"net/url"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// Kind is the kind of a target.
type Kind uint8

// The kinds of targets.
const (
	Agent Kind = iota // our agent: it supports ?name[]= and has collection timestamps
	DCGM              // any other exporter of GPU metrics
	Pod               // a pod's own metrics, such as an inference server's
)

// Target is one metrics endpoint to scrape.
type Target struct {
	Name   string  // unique; also the name of the series.Target
	URL    url.URL // such as http://10.1.2.3:9400/metrics; the host is an IP address and a port
	Kind   Kind
	Labels series.TargetLabels
	TLS    TLS    // for a Pod with https; of any other target the zero TLS
	UID    string // of an exporter's pod: the GPUs of another pod of this name are forgotten

	Fields  gpu.FieldSet  // the fields in use, for Agent and DCGM; empty: all
	Named   *page.Named   // beside Fields, those in use of the GPUs of some namespaces; compared by its address
	Metrics []page.Metric // the metrics in use, for Pod
}

// copy returns a copy of a list's element: a pointer into the list keeps all of it.
func (t *Target) copy() *Target {
	own := *t
	return &own
}

func (t *Target) equal(o *Target) bool {
	return t.Name == o.Name && t.URL == o.URL && t.Kind == o.Kind && t.TLS == o.TLS && t.Labels == o.Labels && t.UID == o.UID &&
		t.Fields == o.Fields && t.Named == o.Named && slices.Equal(t.Metrics, o.Metrics)
}

// State is the state of a target, for the page and the CLI.
type State struct {
	Name string
	URL  string
	Kind Kind

	LastSuccess time.Time     // when samples last arrived; zero: never
	Collected   time.Time     // when these samples were collected
	Lag         time.Duration // from their collection to their arrival
	Skew        time.Duration // how far the target's clock is ahead of ours; zero: its times are used without a correction
	Took        time.Duration // duration of the last request
	Interval    time.Duration // the agent's, or estimated from the changes of values; zero: unknown
	Freshness   string        // how the age of the values is known, such as page.FreshByEnergy; empty for a Pod, which measures at the scrape
	Waiting     bool          // the values have not changed since the first scrape, and may be old
	Frozen      int           // devices whose values have not changed for too long
	Samples     int           // of the last success
	BadLines    int           // malformed lines of the last page, skipped
	BadLine     string        // the first of them: its number and the error
	OutOfRange  int           // values of the last page out of range, omitted

	Err      error     // of the last scrape; nil after a success
	ErrSince time.Time // of the first failure since the last success
	Failures int       // since the last success
}

// Up reports whether the values of the last scrape can be used.
func (s *State) Up() bool { return s.Problem() == "" && !s.LastSuccess.IsZero() }

// Problem returns why the target's values cannot be used; empty if they can be, and
// before the first scrape.
func (s *State) Problem() string {
	switch {
	case s.Err != nil:
		return s.Err.Error()
	case s.Waiting:
		return "the values have not changed since the first scrape: they may be old and are not used until they change"
	}
	return ""
}
