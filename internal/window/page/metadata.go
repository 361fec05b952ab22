// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/common/model"
)

// Metadata is what a page says about a metric.
type Metadata struct{ Type, Help, Unit string }

// The bounds of what pages say. Tenants choose the pages of their pods.
const (
	maxDescribed          = 256  // metrics of one namespace, and of all exporters together
	maxDescribedNamespace = 256  // namespaces
	maxDescribedName      = 200  // bytes; a page's comments about longer names are ignored
	maxHelp               = 512  // bytes; longer texts are cut
	maxComments           = 1024 // that are read of a target
	maxMetadata           = 16   // different descriptions of one metric in an answer
	maxUnit               = 32   // bytes
	exporters             = ""   // stands for the namespace of agents and dcgm-exporters
)

// Descriptions are what the pages of pods and dcgm-exporters say about their metrics.
// The first description of a metric in a namespace counts; those of agents are known.
type Descriptions struct {
	mu    sync.RWMutex
	of    map[string]map[string]Metadata // by namespace and metric
	order []string                       // the namespaces, by the time of their first description
}

// types are the types of metrics, with Prometheus's name.
var types = map[string]string{
	"counter": "counter", "gauge": "gauge", "histogram": "histogram", "gaugehistogram": "gaugehistogram", "summary": "summary",
	"info": "info", "stateset": "stateset", "untyped": "unknown", "unknown": "unknown",
}

// Learner returns the function that takes the comments of a page, for Config.Learn. The
// namespace is the pod's; empty: the page is a dcgm-exporter's.
func (d *Descriptions) Learner(namespace string) func(comment []byte) {
	left := maxComments
	return func(line []byte) {
		if left--; left >= 0 {
			d.learn(namespace, line)
		}
	}
}

// learn takes a comment: # HELP, # TYPE or # UNIT, a name and a text.
func (d *Descriptions) learn(namespace string, line []byte) {
	comment, ok := bytes.CutPrefix(line, []byte("# "))
	if !ok {
		return
	}
	keyword, rest, _ := bytes.Cut(comment, []byte(" "))
	name, text, _ := bytes.Cut(rest, []byte(" "))
	if len(name) > maxDescribedName || !model.LegacyValidation.IsValidMetricName(string(name)) {
		return
	}
	set := func(f func(*Metadata)) { d.set(namespace, string(name), f) }
	switch string(keyword) {
	case "HELP":
		help := helpOf(text)
		set(func(m *Metadata) { m.Help = help })
	case "TYPE":
		if kind := types[string(bytes.TrimSpace(text))]; kind != "" {
			set(func(m *Metadata) { m.Type = kind })
		}
	case "UNIT":
		if unit := string(bytes.TrimSpace(text)); len(unit) <= maxUnit && model.LegacyValidation.IsValidMetricName(unit) {
			set(func(m *Metadata) { m.Unit = unit })
		}
	}
}

// helpOf returns the text of a HELP line, which has escapes.
func helpOf(text []byte) string {
	s := strings.ToValidUTF8(string(text[:min(len(text), maxHelp)]), "")
	return strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`).Replace(s)
}

func (d *Descriptions) set(namespace, name string, f func(*Metadata)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[string]map[string]Metadata{}
	}
	if d.of[namespace] == nil {
		if len(d.order) >= maxDescribedNamespace {
			delete(d.of, d.order[0])
			d.order = slices.Delete(d.order, 0, 1)
		}
		d.of[namespace] = map[string]Metadata{}
		if namespace != exporters {
			d.order = append(d.order, namespace)
		}
	}
	m, known := d.of[namespace][name]
	if !known && len(d.of[namespace]) >= maxDescribed {
		return
	}
	before := m
	f(&m)
	// A part that is known stays: of two pages, the first counts.
	if before.Type != "" {
		m.Type = before.Type
	}
	if before.Help != "" {
		m.Help = before.Help
	}
	if before.Unit != "" {
		m.Unit = before.Unit
	}
	d.of[namespace][name] = m
}

// Names lists the metrics that pages of a namespace's pods describe, in no order. All are valid names.
func (d *Descriptions) Names(namespace string) []string {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.Collect(maps.Keys(d.of[namespace]))
}

// Of returns what pages say about a metric: those of dcgm-exporters, and those of pods
// in some namespaces; nil: in all.
func (d *Descriptions) Of(namespaces []string, metric string) (out []Metadata) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if namespaces == nil {
		namespaces = slices.Sorted(maps.Keys(d.of))
	}
	for _, ns := range append([]string{exporters}, namespaces...) {
		m, ok := d.of[ns][metric]
		if !ok || slices.Contains(out, m) {
			continue
		}
		if m.Type == "" {
			m.Type = "unknown"
		}
		if out = append(out, m); len(out) == maxMetadata {
			break
		}
	}
	return out
}
