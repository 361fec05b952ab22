// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// SourceKind says where a signal's readings come from.
type SourceKind uint8

// The kinds of sources.
const (
	GPU   SourceKind = iota // the GPUs that a pod holds
	Pods                    // the pods' own metrics
	Query                   // a PromQL backend: one number for the workload
)

// Source is where the readings of one signal come from. Readings are in the
// unit of the field (GPU), or as the pods or the query give them.
type Source struct {
	Kind   SourceKind
	Field  gpu.FieldID // GPU
	Terms  []Term      // Pods; a pod's reading is their sum, absent where one is
	Port   Port        // Pods
	Path   string      // Pods
	PromQL string      // Query

	// Pace is where a server tells how fast its batch advances; nil where the
	// signal has no limit.
	Pace *Pace // Pods

	// Came counts the requests that have come to the server. Where nothing does,
	// Ended counts those that it has answered: those that come are these and what
	// Terms, which are gauges then, grow by. Both are nil where neither is known.
	Came, Ended Term // Pods
}

// Pace is the two counters of a histogram of the times between tokens. The
// seconds that all sequences of a batch waited grow by as many a second as there
// are sequences, and the number of times is that of the tokens. Those of a
// histogram of the times to the first token are beside them where they have a limit.
type Pace struct {
	Seconds, Tokens      Term
	FirstSeconds, Firsts Term // nil: not wanted
}

// All are the terms that are read of a pod.
func (s *Source) All() []Term {
	all := slices.Clone(s.Terms)
	if s.Pace != nil {
		all = append(all, s.Pace.Seconds, s.Pace.Tokens)
		if s.Pace.Firsts != nil {
			all = append(all, s.Pace.FirstSeconds, s.Pace.Firsts)
		}
	}
	for _, counter := range []Term{s.Came, s.Ended} {
		if counter != nil {
			all = append(all, counter)
		}
	}
	return all
}

// Term is one part of a reading, under each of the names that it goes by: a
// server's releases and backends differ. The first that a pod shows counts.
type Term []PodMetric

// PodMetric is one number made of the series of a name that a pod exposes.
type PodMetric struct {
	Name         string
	Label, Value string // only series with this label; empty: all
	Max          bool   // the largest of them counts; else they are added up
	// By is a label: of the series that agree in it, which are copies that
	// several ranks tell of the same, only the largest is added up. Empty: all are.
	By     string
	Rate   bool    // it is a counter, and its increase per second counts
	Factor float64 // from its unit to the signal's; 0: 1
	// Least and Most are the bounds of its values; outside of them it has none.
	// Both 0: nothing is known of them.
	Least, Most float64
}

// Key is what the metric is called in the store: its name where nothing but a
// sum is made of it, else as PromQL would say it.
func (m *PodMetric) Key() string {
	key := m.Name
	if m.Label != "" {
		key = fmt.Sprintf("%s{%s=%q}", key, m.Label, m.Value)
	}
	switch {
	case m.Max:
		return "max(" + key + ")"
	case m.By != "":
		return fmt.Sprintf("sum(max by (%s) (%s))", m.By, key)
	}
	return key
}

// Port is which of a pod's ports serves its metrics. The zero Port is the only
// one that the pod declares.
type Port struct {
	Given *intstr.IntOrString // by the user; goes before the rest
	// Default is the server's own, for pods that declare none, or several; 0: none.
	Default int32
	// Apart says that the server's metrics are not on the port of its API, so
	// that the only port that a pod declares need not be theirs.
	Apart bool
}
