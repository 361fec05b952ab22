// SPDX-License-Identifier: Apache-2.0

package page

import (
	"slices"
	"unicode/utf8"
	"unsafe"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// labeller gives the lines of a target the labels that a Prometheus gives them: those
// of the page and those of the target. The target's have precedence, and a label of
// the page with the same name is renamed exported_*. On an exporter's page, exported_pod and
// so on are renamed too: they stand for an owner that the API server confirms, and a tenant
// can write them as labels of a pod, which dcgm-exporter may add.
type labeller struct {
	isPod   bool
	names   *Names
	target  *series.Target
	fixed   []labels.Label // of the target
	spaces  []string       // of the target: the namespace of a pod
	builder labels.ScratchBuilder
	pairs   []labels.Label // of a line
	buffer  []byte

	meters  []meter             // of the scrape itself
	sets    []series.Labels     // from 1 on; entry.label is the index
	several map[string]struct{} // names of fields with several lines of one device
	again   bool                // several has changed: the next page is parsed from scratch
	refused [series.NumRefused]int
}

// maxLineLabels is the limit of a line's labels. dcgm-exporter has about 15, and the
// labels of pods in addition if it is asked for them.
const maxLineLabels = 96

func newLabeller(cfg *Config, isPod bool) labeller {
	x := labeller{isPod: isPod, names: cfg.Names, target: cfg.Target, sets: make([]series.Labels, 1)}
	l := &cfg.Labels
	for _, pair := range [][2]string{{"instance", l.Instance}, {"job", l.Job}, {"namespace", l.Namespace}, {"node", l.Node}, {"pod", l.Pod}} {
		if pair[1] != "" {
			x.fixed = append(x.fixed, labels.Label{Name: pair[0], Value: pair[1]})
		}
	}
	if isPod {
		x.spaces = []string{l.Namespace}
	}
	return x
}

// forget drops the remembered label sets.
func (x *labeller) forget() { x.sets, x.again, x.meters = make([]series.Labels, 1), false, nil }

// release drops the memory that only new lines need.
func (x *labeller) release() { x.pairs, x.buffer, x.builder = nil, nil, labels.ScratchBuilder{} }

// size returns the bytes that are remembered. The store accounts for the sets.
func (x *labeller) size() int64 {
	return int64(cap(x.sets))*int64(unsafe.Sizeof(series.Labels(nil))) + int64(cap(x.buffer)) + int64(len(x.several))*2*32
}

// expose prepares a line's entry for queries: with the series of the device's field, or
// with one of the line's own. namespaces are those whose queries may read the line.
func (x *labeller) expose(e *entry, l *line, namespaces []string) {
	if x.names == nil {
		return
	}
	field := e.use == value && !e.copy
	if field && !x.names.allOf(x.isPod) && !x.names.hasField(e.field, namespaces) || !field && !x.names.allOf(x.isPod) && !x.names.has(l.Name, namespaces) {
		return
	}
	if isReserved(x.isPod, l.Name) {
		x.refused[series.RefusedReserved]++
		return
	}
	if len(x.sets) > 2*maxEntries {
		x.again = true
		return
	}
	set, ok := x.labels(l)
	if !ok {
		x.refused[series.RefusedName]++
		return
	}
	if _, several := x.several[string(l.Name)]; !field || several {
		if e.own, ok = x.target.Ref(series.Key{Line: string(x.buffer), PaidBy: x.payer(l.Name, namespaces)}); !ok {
			return
		}
	}
	e.label = int32(len(x.sets))
	x.sets = append(x.sets, set)
}

// payer returns who pays for a line of an exporter; empty: the target does.
func (x *labeller) payer(name []byte, namespaces []string) string {
	if whose := x.names.names[string(name)]; !x.isPod && !x.names.all && whose != nil {
		for _, ns := range namespaces {
			if slices.Contains(whose, ns) {
				return ns
			}
		}
	}
	return ""
}

// labels returns a line's label set, and its encoding in x.buffer. It returns false if
// a Prometheus would refuse the line.
func (x *labeller) labels(l *line) (set labels.Labels, ok bool) {
	x.pairs = append(x.pairs[:0], labels.Label{Name: model.MetricNameLabel, Value: string(l.Name)})
	if !l.All() || len(l.Labels) > maxLineLabels || !utf8.Valid(l.Name) {
		return set, false
	}
	for i := range l.Labels {
		p := &l.Labels[i]
		if len(p.Value) == 0 {
			continue // as if it was missing
		}
		if len(p.Name) == 0 || !utf8.Valid(p.Name) || !utf8.Valid(p.Value) {
			return set, false
		}
		x.pairs = append(x.pairs, labels.Label{Name: string(p.Name), Value: string(p.Value)})
	}
	if !x.isPod {
		for _, name := range OwnerLabels {
			x.rename(Exported(name))
		}
	}
	for _, f := range x.fixed {
		x.rename(f.Name)
		x.pairs = append(x.pairs, f)
	}
	x.builder.Reset()
	for _, p := range x.pairs {
		x.builder.Add(p.Name, p.Value)
	}
	x.builder.Sort()
	set = x.builder.Labels()
	if _, twice := set.HasDuplicateLabelNames(); twice {
		return set, false
	}
	x.buffer = set.Bytes(x.buffer)
	return set, true
}

// rename renames a label of the page whose name is taken.
func (x *labeller) rename(name string) {
	at := x.find(name)
	if at < 0 {
		return
	}
	for x.find(name) >= 0 || x.isFixed(name) {
		name = Exported(name)
	}
	x.pairs[at].Name = name
}

func (x *labeller) find(name string) int {
	return slices.IndexFunc(x.pairs, func(p labels.Label) bool { return p.Name == name })
}

func (x *labeller) isFixed(name string) bool {
	return slices.ContainsFunc(x.fixed, func(p labels.Label) bool { return p.Name == name })
}

// exposed lists the series of a page's entries. A field with several lines of one
// device is noted: its lines get series of their own from the next page on.
func (x *labeller) exposed(entries []entry) []series.Exposed {
	if x.names == nil {
		return nil
	}
	list := make([]series.Exposed, 0, len(x.sets)+numMeters)
	for _, m := range x.scrapeMeters() {
		list = append(list, series.Exposed{Labels: m.set, Ref: m.ref, Scale: 1})
	}
	seen := make(map[series.Ref]struct{}, len(x.sets))
	for i := range entries {
		e := &entries[i]
		if e.label == 0 {
			continue
		}
		set := x.sets[e.label]
		if e.own != (series.Ref{}) {
			list = append(list, series.Exposed{Labels: set, Ref: e.own, Scale: 1})
			continue
		}
		if _, twice := seen[e.ref]; twice {
			x.noteSeveral(set)
			continue
		}
		seen[e.ref] = struct{}{}
		list = append(list, series.Exposed{Labels: set, Ref: e.ref, Field: gpu.At(e.field).ID, Scale: e.scale})
	}
	return list
}

// maxSeveral is the limit of remembered names.
const maxSeveral = 64

func (x *labeller) noteSeveral(set series.Labels) {
	l, ok := set.(labels.Labels)
	if !ok || len(x.several) >= maxSeveral {
		return
	}
	if x.several == nil {
		x.several = map[string]struct{}{}
	}
	x.several[l.Get(model.MetricNameLabel)] = struct{}{}
	x.again = true
}
