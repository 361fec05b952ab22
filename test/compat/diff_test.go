// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// kind is what differs.
type kind string

const (
	kindMetric    kind = "metric"     // a metric that only one of the two shows
	kindSeries    kind = "series"     // a series that only one of the two shows
	kindLabel     kind = "label"      // a label of a series that both show
	kindOrder     kind = "order"      // of labels
	kindValue     kind = "value"      // of a series
	kindType      kind = "type"       // of a metric
	kindHelp      kind = "help"       // of a metric
	kindTwice     kind = "twice"      // a series, HELP or TYPE that is there more than once
	kindMalformed kind = "malformed"  // a line that is no exposition
	kindStatus    kind = "status"     // of an answer
	kindHeader    kind = "header"     // of an answer
	kindBody      kind = "body"       // of an answer that is no exposition
	kindStart     kind = "start"      // whether the program starts
	kindStop      kind = "stop"       // how it ends
	absent             = "(absent)"   // a side that has no such thing
	present            = "(present)"  // a side whose value does not matter
	several            = "(repeated)" // a side that has it more than once
)

// difference is one thing that the two programs do differently in a scenario.
type difference struct {
	kind         kind
	name         string // of the metric, the label, the header, …
	theirs, ours string
	example      string // where it was seen first
}

// key is what makes two differences one in a report.
func (d difference) key() difference {
	d.example = ""
	return d
}

// comparison gathers differences.
type comparison struct {
	values bool // values are the same at all times, so that they can be compared
	found  []difference
}

func (c *comparison) add(k kind, name, theirs, ours, example string) {
	if theirs != ours {
		c.found = append(c.found, difference{k, name, theirs, ours, example})
	}
}

// pages compares two expositions.
func (c *comparison) pages(theirs, ours page) {
	c.headers(theirs, ours)
	for _, line := range theirs.bad {
		c.add(kindMalformed, "line", present, absent, line)
	}
	for _, line := range ours.bad {
		c.add(kindMalformed, "line", absent, present, line)
	}
	c.repeats(theirs, ours)
	t, o := byMetric(theirs.series), byMetric(ours.series)
	unreadable := union(spoiled(theirs), spoiled(ours))
	for _, name := range slices.Sorted(maps.Keys(union(t, o))) {
		switch {
		case unreadable[name]: // told already
		case len(o[name]) == 0:
			c.add(kindMetric, name, present, absent, t[name][0].String())
		case len(t[name]) == 0:
			c.add(kindMetric, name, absent, present, o[name][0].String())
		case strings.HasPrefix(name, ownPrefix): // the other is ours, too
		default:
			c.metric(t[name], o[name])
		}
	}
}

// spoiled are the metrics with lines that are no exposition.
func spoiled(p page) map[string]bool {
	names := map[string]bool{}
	for _, line := range p.bad {
		name, _, _ := strings.Cut(line, "{")
		names[name] = true
	}
	return names
}

// headers compares HELP and TYPE of the metrics that both show.
func (c *comparison) headers(theirs, ours page) {
	for _, name := range slices.Sorted(maps.Keys(union(union(theirs.typ, ours.typ), union(theirs.help, ours.help)))) {
		if len(theirs.typ[name]) > 0 && len(ours.typ[name]) > 0 {
			c.add(kindType, name, theirs.typ[name][0], ours.typ[name][0], "")
		}
		if len(theirs.help[name]) > 0 && len(ours.help[name]) > 0 {
			c.add(kindHelp, name, theirs.help[name][0], ours.help[name][0], "")
		}
	}
}

// repeats looks for what may be there only once.
func (c *comparison) repeats(theirs, ours page) {
	t, o := repeated(theirs), repeated(ours)
	for _, what := range slices.Sorted(maps.Keys(union(t, o))) {
		c.add(kindTwice, what, t[what], o[what], "")
	}
}

func repeated(p page) map[string]string {
	out, seen := map[string]string{}, map[string]bool{}
	for i := range p.series {
		id := identity(&p.series[i], nil)
		if seen[id] {
			out["series of "+p.series[i].name] = several
		}
		seen[id] = true
	}
	for name, lines := range p.typ {
		if len(lines) > 1 {
			out["TYPE of "+name] = several
		}
	}
	return out
}

// metric compares the series of one metric: first those that are the same by
// all of their labels, then the rest by what they are about.
func (c *comparison) metric(theirs, ours []series) {
	t, o := c.pair(theirs, ours, nil)
	t, o = c.pair(t, o, owner)
	t, o = c.pair(t, o, device)
	for i := range t {
		c.add(kindSeries, shape(&t[i]), present, absent, t[i].String())
	}
	for i := range o {
		c.add(kindSeries, shape(&o[i]), absent, present, o[i].String())
	}
}

// device are the labels that say what a series is about; owner those that tell
// copies of it apart.
var (
	device = []string{"gpu", "GPU_I_ID", "nvlink", "nvswitch", "cpu", "cpucore", "xid", "clock_event", "health_watch", "peer_gpu"}
	owner  = append([]string{"pod", "pod_name", "namespace", "pod_namespace", "vgpu", "hpc_job"}, device...)
)

// pair compares the series of both sides that alone have the same values of
// the given labels, and gives the others.
func (c *comparison) pair(theirs, ours []series, names []string) (restT, restO []series) {
	t, o := byIdentity(theirs, names), byIdentity(ours, names)
	for i := range theirs {
		id := identity(&theirs[i], names)
		if len(t[id]) == 1 && len(o[id]) == 1 {
			c.one(&theirs[i], o[id][0])
			continue
		}
		restT = append(restT, theirs[i])
	}
	for i := range ours {
		if id := identity(&ours[i], names); len(t[id]) != 1 || len(o[id]) != 1 {
			restO = append(restO, ours[i])
		}
	}
	return restT, restO
}

// one compares two series that are about the same.
func (c *comparison) one(t, o *series) {
	where := t.String()
	if c.values {
		c.add(kindValue, t.name, t.value, o.value, where)
	} else {
		c.add(kindValue, t.name, notation(t.value), notation(o.value), where)
	}
	names := map[string]bool{}
	for _, l := range slices.Concat(t.labels, o.labels) {
		names[l.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		c.add(kindLabel, name, valueOf(t, name), valueOf(o, name), where)
	}
	c.add(kindOrder, "labels", order(t, o), order(o, t), where)
}

func valueOf(s *series, name string) string {
	if v, ok := s.get(name); ok {
		return v
	}
	return absent
}

// order is the order of the labels that the other has, too.
func order(s, other *series) string {
	var names []string
	for _, l := range s.labels {
		if _, ok := other.get(l.name); ok {
			names = append(names, l.name)
		}
	}
	return strings.Join(names, ",")
}

// notation is how a number is written.
func notation(value string) string {
	whole, fraction, dotted := strings.Cut(value, ".")
	switch {
	case strings.ContainsAny(value, "eE"):
		return "a number with an exponent"
	case dotted:
		return fmt.Sprintf("a number with %d decimals", len(fraction))
	case strings.Trim(whole, "-0123456789") == "":
		return "a whole number"
	}
	return value
}

// shape is a series' name with the names of its labels: what a report needs to
// say of a series that one side lacks.
func shape(s *series) string {
	var names []string
	for _, l := range s.labels {
		names = append(names, l.name)
	}
	return s.name + "{" + strings.Join(names, ",") + "}"
}

// identity is the metric with the given labels, or with all of them.
func identity(s *series, names []string) string {
	labels := slices.Clone(s.labels)
	if names != nil {
		labels = slices.DeleteFunc(labels, func(l label) bool { return !slices.Contains(names, l.name) })
	}
	slices.SortStableFunc(labels, func(a, b label) int { return strings.Compare(a.name, b.name) })
	return fmt.Sprintf("%s%q", s.name, labels)
}

func byIdentity(all []series, names []string) map[string][]*series {
	m := map[string][]*series{}
	for i := range all {
		id := identity(&all[i], names)
		m[id] = append(m[id], &all[i])
	}
	return m
}

// byMetric leaves out what is there a second time, which repeats tells.
func byMetric(all []series) map[string][]series {
	m, seen := map[string][]series{}, map[string]bool{}
	for i := range all {
		if id := identity(&all[i], nil); !seen[id] {
			seen[id] = true
			m[all[i].name] = append(m[all[i].name], all[i])
		}
	}
	return m
}

// union has the keys of both.
func union[V any](a, b map[string]V) map[string]V {
	m := maps.Clone(a)
	maps.Copy(m, b)
	return m
}
