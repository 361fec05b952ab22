// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"slices"
	"strings"
)

// batch is families that one query asks for: they have the same labels.
type batch []Family

// familyLabel is the label with the name of a series' family, which the queries add. It
// begins with underscores, as labels that no target has. Without it, "or" would take two
// families of the same labels for one.
const familyLabel = "__family"

// batches puts families with the same labels together.
func batches(families []Family) (out []batch) {
	type key struct {
		of     Subject
		by     string
		isOver bool
	}
	index := map[key]int{}
	for _, f := range families {
		k := key{f.Of, f.by(), f.Over != ""}
		at, ok := index[k]
		if !ok {
			at = len(out)
			index[k], out = at, append(out, nil)
		}
		out[at] = append(out[at], f)
	}
	return out
}

// by returns the labels of a family's series, without the label stat.
func (f *Family) by() string {
	names := f.Of.labels()
	for i := range f.Labels {
		names = append(names, f.Labels[i].Name)
	}
	return strings.Join(names, ", ")
}

// queries are PromQL queries for the aggregates of a batch over the minute before each
// moment, by their cell. All replicas of the controller have about the same values: the
// mean of their means is taken.
func (b batch) queries() (out [3]string) {
	out[cellMean], out[cellMax] = b.query("avg", StatMean), b.query("max", StatMax)
	if b[0].Over != "" {
		out[cellSum] = b.query("avg", StatSum)
	}
	return out
}

func (b batch) query(aggregate string, stat Stat) string {
	var parts []string
	for i := range b {
		f, matcher := &b[i], ""
		if f.Over != "" {
			matcher = fmt.Sprintf("{stat=%q}", stat)
		}
		parts = append(parts, fmt.Sprintf("label_replace(%s by (%s) (%s_over_time(%s%s[1m])), %q, %q, \"\", \"\")",
			aggregate, f.by(), aggregate, f.Name, matcher, familyLabel, f.Name))
	}
	return strings.Join(parts, " or ")
}

// identify returns what a series is about, and its metric. ok is false if it is of no
// family: who writes into the backend chooses its labels.
func (b batch) identify(labels map[string]string) (w Workload, m Metric, ok bool) {
	i := slices.IndexFunc(b, func(f Family) bool { return f.Name == labels[familyLabel] })
	if i < 0 {
		return w, "", false
	}
	f := &b[i]
	var pairs []string
	for j := range f.Labels {
		l := &f.Labels[j]
		if !l.accepts(labels[l.Name]) {
			return w, "", false
		}
		pairs = append(pairs, l.Name, labels[l.Name])
	}
	w, ok = f.Of.workload(labels)
	m = NewMetric(f.Name, pairs...)
	return w, m, ok && m.valid()
}
