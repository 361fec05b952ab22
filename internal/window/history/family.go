// SPDX-License-Identifier: Apache-2.0

package history

import (
	"math"
	"slices"
)

// The kinds of workloads whose series have no label kind.
const (
	KindAutoscaler = "GPUAutoscaler"
	KindNamespace  = "Namespace" // the sum of a namespace; its name is that of the namespace
)

// Subject is what the series of a family are about.
type Subject int

// The subjects, with the labels that name one.
const (
	Autoscalers Subject = iota // namespace, name
	Workloads                  // namespace, kind, name
	Namespaces                 // namespace
)

// labels returns the names of the labels.
func (s Subject) labels() []string {
	switch s {
	case Autoscalers:
		return []string{"namespace", "name"}
	case Namespaces:
		return []string{"namespace"}
	}
	return []string{"namespace", "kind", "name"}
}

// workload returns what a series with these labels is about; ok is false if it cannot be
// of the subject: the kind of a workload is an owner reference's, which may name any.
func (s Subject) workload(labels map[string]string) (w Workload, ok bool) {
	w = Workload{Namespace: labels["namespace"], Kind: labels["kind"], Name: labels["name"]}
	switch s {
	case Autoscalers:
		w.Kind = KindAutoscaler
	case Namespaces:
		w.Kind, w.Name = KindNamespace, w.Namespace
	}
	return w, w.check() == nil && w.Subject() == s
}

// Subject returns what a workload's series are about.
func (w Workload) Subject() Subject {
	switch w.Kind {
	case KindAutoscaler:
		return Autoscalers
	case KindNamespace:
		return Namespaces
	}
	return Workloads
}

// Labels returns the labels of a workload's series, names and values in pairs.
func (w Workload) Labels() []string {
	switch w.Subject() {
	case Autoscalers:
		return []string{"namespace", w.Namespace, "name", w.Name}
	case Namespaces:
		return []string{"namespace", w.Namespace}
	}
	return []string{"namespace", w.Namespace, "kind", w.Kind, "name", w.Name}
}

// Label is a label of a family, beside those of its subject.
type Label struct {
	Name     string
	Values   []string // that it has; none: any
	Optional bool     // a series may lack it
}

// accepts reports whether a series may have the label with a value; empty: without it.
func (l *Label) accepts(value string) bool {
	if value == "" {
		return l.Optional
	}
	return len(l.Values) == 0 || slices.Contains(l.Values, value)
}

// Family is a metric of /metrics of which the history keeps minutes.
type Family struct {
	Name   string
	Of     Subject
	Labels []Label
	// Over is the family with the same labels that has the number of GPUs over which this
	// one has statistics. Empty: its series have no label stat.
	Over string
}

// Statistics are those of a family's series.
func (f *Family) Statistics() []Stat {
	if f.Over == "" {
		return []Stat{StatNone}
	}
	return Statistics()
}

// Stat is a statistic, as the label stat names it.
type Stat string

// The statistics.
const (
	StatNone    Stat = "" // without the label: the mean
	StatMean    Stat = "avg"
	StatSum     Stat = "sum"    // the mean times the count
	StatMax     Stat = "max"    // the highest reading
	StatRolling Stat = "avg_5m" // the mean of the last RollingMinutes, weighted by their counts
)

// Statistics are the statistics of the GPUs' families, in the order of /metrics.
func Statistics() []Stat { return []Stat{StatMean, StatSum, StatMax, StatRolling} }

// RollingMinutes is the time of StatRolling.
const RollingMinutes = 5

// Of returns a statistic of one minute; NaN: it is unknown. That of StatRolling is the
// minute's own.
func (s Stat) Of(v *Value) float64 {
	switch s {
	case StatMax:
		return v.Max
	case StatSum:
		if v.Mean == 0 {
			return 0 // however many there were
		}
		return v.Mean * v.Count
	case StatNone, StatMean, StatRolling:
		return v.Mean
	}
	return math.NaN()
}
