// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// SourceKind is the origin of a signal's readings.
type SourceKind uint8

// The kinds of sources.
const (
	GPU   SourceKind = iota // the GPUs that a pod holds
	Pods                    // the pods' own metrics
	Query                   // a PromQL backend: one number for the workload
)

// Source describes how the readings of one signal are obtained. Readings are in the
// unit of the field (GPU), or unchanged (Pods and Query).
type Source struct {
	Kind   SourceKind
	Signal int         // the index of the signal in the spec
	Field  gpu.FieldID // GPU
	Terms  []Term      // Pods; a pod's reading is their sum; it is absent if one term is absent
	Port   Port        // Pods
	Path   string      // Pods
	TLS    *TLS        // Pods; nil: plain HTTP
	PromQL string      // Query

	// Gateway has the pods whose series the query reads; nil if it is a user's query.
	Gateway *Gateway // Query

	// Pace has the latency metrics; nil if the signal has no latency limit.
	Pace *Pace // Pods

	// Misses counts the requests, and those that miss a limit; nil if the signal has none.
	Misses *Misses // Pods

	// Arrived counts the requests that arrived at the server. If the server does not
	// count them, Completed counts the requests that it answered: the arrivals are
	// then the increase of Completed plus the increase of Terms, which are gauges.
	// Both are nil if the server counts neither.
	Arrived, Completed Term // Pods

	// InFlight counts the requests that a server has and has not answered: Terms, without
	// those that are rates. A request of a minute adds nothing to a rate until it ends.
	// nil: the signal does not count requests.
	InFlight []Term // Pods

	// Awake is 0 on a server that sleeps: it is ready, holds its GPUs and answers no request.
	// nil: the server has no such state.
	Awake Term // Pods
}

// Pace holds the rates of the _sum and _count series of two histograms: the time
// between tokens, and the time to the first token. The rate of TokenSeconds is the
// number of sequences in the batch, and the rate of Tokens is tokens/s.
type Pace struct {
	TokenSeconds, Tokens           Term
	FirstTokenSeconds, FirstTokens Term // nil: the time to the first token has no limit
}

// Misses holds the counters that tell how many requests missed a limit.
type Misses struct {
	Ended   Term   // requests that were answered or aborted
	Aborted []Term // of Ended, by reason; a server without them aborted none
	// Extra counts aborted requests that Ended does not count.
	Extra Term // nil: there are none
	// First and Token have the limited latencies, each in the first histogram that the
	// server has; nil: no limit.
	First, Token []Histogram

	PromptTokens, OutputTokens Term

	// CacheUse is the share of the KV cache that requests hold, and Running and Waiting are the
	// requests; nil: the server does not tell.
	CacheUse, Running, Waiting Term
}

// Histogram is a histogram of a server around a limit, in seconds.
type Histogram struct {
	Limit        float64
	Count        Term
	Below, Above Term // observations up to the edge below the limit, and up to the one above
	Lower, Upper Term // the edges; both are the limit where it is one. Upper is absent above the last edge
	// OfTokens is true if each token is observed, and not each request.
	OfTokens bool
}

// terms returns all terms.
func (m *Misses) terms() []Term {
	out := append([]Term{m.Ended, m.PromptTokens, m.OutputTokens}, m.Aborted...)
	for _, more := range []Term{m.Extra, m.CacheUse, m.Running, m.Waiting} {
		if more != nil {
			out = append(out, more)
		}
	}
	for _, h := range slices.Concat(m.First, m.Token) {
		out = append(out, h.Count, h.Below, h.Above, h.Lower, h.Upper)
	}
	return out
}

// Gateway selects the pods of a gateway, which are in the workload's namespace.
type Gateway struct {
	Selectors []labels.Selector // a pod of the gateway matches one of them
	Port      Port
	Path      string
	TLS       *TLS     // nil: plain HTTP
	Metrics   []string // that the query reads, sorted
}

// AllTerms returns all terms that are read from a pod.
func (s *Source) AllTerms() []Term {
	all := slices.Clone(s.Terms)
	if s.Pace != nil {
		all = append(all, s.Pace.TokenSeconds, s.Pace.Tokens)
		if s.Pace.FirstTokens != nil {
			all = append(all, s.Pace.FirstTokenSeconds, s.Pace.FirstTokens)
		}
	}
	if s.Misses != nil {
		all = append(all, s.Misses.terms()...)
	}
	for _, more := range []Term{s.Arrived, s.Completed, s.Awake} {
		if more != nil {
			all = append(all, more)
		}
	}
	return all
}

// PlainNames returns the metrics whose series are only added up per pod, so that the
// metrics API can serve them by name.
func (s *Source) PlainNames() (names []string) {
	for _, term := range s.Terms {
		for i := range term {
			if m := &term[i]; m.Key() == m.Name {
				names = append(names, m.Name)
			}
		}
	}
	return names
}

// Term is one summand of a reading: alternative metrics of the same quantity, since
// a server's releases and backends use different names. The first one that a pod
// exposes is used.
type Term []PodMetric

// PodMetric is one number that is aggregated from a pod's series of one name.
type PodMetric struct {
	Name         string
	Label, Value string // only series with this label; empty: all series
	Max          bool   // the largest series, else the sum of the series
	// By is a label. Only the largest of the series with the same value of it is
	// added to the sum: they are copies from several ranks. Empty: all are added.
	By string
	// Optional is the name of the term's first metric if only some servers have the term, such
	// as a queue of decode servers: where a page has neither a series nor a TYPE of the term's
	// metrics, it is 0. Empty: it is absent.
	Optional string
	Bucket   Bucket  // of a histogram's _bucket
	Rate     bool    // the metric is a counter, and its rate per second is used
	Factor   float64 // from the metric's unit to the signal's; 0: 1
	// LowerBound and UpperBound limit the valid values; others are absent. If both
	// are 0, there are no limits.
	LowerBound, UpperBound float64
}

// Bucket is an edge of a histogram near a limit: the highest up to it or, if Above is set,
// the lowest from it on. The zero Bucket is none.
type Bucket struct {
	Limit float64
	Above bool
	Edge  bool // the edge itself, not the count up to it
}

// key returns the key of the bucket of a metric.
func (b *Bucket) key(metric string) string {
	sign := "{le<="
	if b.Above {
		sign = "{le>="
	}
	key := metric + sign + strconv.FormatFloat(b.Limit, 'g', -1, 64) + "}"
	if b.Edge {
		return "le(" + key + ")"
	}
	return key
}

// Key returns the metric's key in the store: its name if its series are only added
// up, else the aggregation as a PromQL expression.
func (m *PodMetric) Key() string {
	key := m.Name
	if m.Label != "" {
		key = fmt.Sprintf("%s{%s=%q}", key, m.Label, m.Value)
	}
	switch {
	case m.Bucket != Bucket{}:
		return m.Bucket.key(key)
	case m.Max:
		return "max(" + key + ")"
	case m.By != "":
		return fmt.Sprintf("sum(max by (%s) (%s))", m.By, key)
	}
	return key
}

// Port selects the port of a pod that serves its metrics. The zero Port selects the
// pod's only declared port.
type Port struct {
	Given *intstr.IntOrString // set by the user; takes precedence
	// Default is the server's usual port, for pods that declare no port or several
	// ports; 0: none.
	Default int32
	// SeparateFromAPI is true if the server's metrics have a port of their own. The
	// pod's only declared port may then be the port of the API.
	SeparateFromAPI bool
}
