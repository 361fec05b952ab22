// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Type is the type column of a collectors file.
type Type string

// The types. Histogram and Summary are accepted and written in # TYPE, as in
// dcgm-exporter. LabelType makes the field's value a label of the device's
// other series.
const (
	Gauge     Type = "gauge"
	Counter   Type = "counter"
	Histogram Type = "histogram"
	Summary   Type = "summary"
	LabelType Type = "label"
)

// Collector is a metric to show.
type Collector struct {
	Name string // as it is shown
	Ref  gpu.Ref
	Type Type
	Help string
	Exp  Derived // the derived metric instead of a field; 0 for a field
}

// LabelCollector is a field that is shown as a label.
type LabelCollector struct {
	Name string // the label's
	Ref  gpu.Ref
}

// Collectors is the content of a collectors file, in its order.
type Collectors struct {
	Metrics []Collector
	Labels  []LabelCollector
}

// Fields is the set of fields that the collectors need.
func (c *Collectors) Fields() gpu.FieldSet {
	var s gpu.FieldSet
	for _, m := range c.Metrics {
		s = s.Union(gpu.SetOf(m.Ref.Field)).Union(m.Exp.fields())
	}
	for _, l := range c.Labels {
		s = s.Union(gpu.SetOf(l.Ref.Field))
	}
	return s
}

// Passed lists the fields that are not in the gpu package's table, sorted, each once. See
// gpu.Passer.
func (c *Collectors) Passed() []gpu.FieldID {
	var ids []gpu.FieldID
	add := func(id gpu.FieldID, exp Derived) {
		if _, known := gpu.IndexOf(id); !known && exp == NotDerived {
			ids = append(ids, id)
		}
	}
	for _, m := range c.Metrics {
		add(m.Ref.Field, m.Exp)
	}
	for _, l := range c.Labels {
		add(l.Ref.Field, NotDerived)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// LineError is why a line of a collectors file is ignored. The other lines are
// used.
type LineError struct {
	Line   int    // from 1
	Text   string // the line, trimmed
	Reason string
}

// Error returns line, text and reason in one line.
func (e LineError) Error() string {
	return fmt.Sprintf("line %d (%q): %s", e.Line, e.Text, e.Reason)
}

// maxJoined is how many lines one record may span: a quoted help text may hold
// line breaks, and an unclosed quote must not swallow the rest of the file.
const maxJoined = 16

// ParseCollectors reads a collectors file: CSV of three columns, the field's
// name in any profile or its number, its type and a help text, each trimmed of spaces. A
// line that starts with # is a comment, also after spaces: a ConfigMap's text is often
// indented. An invalid line is ignored and returned.
func ParseCollectors(text string) (Collectors, []LineError) {
	var (
		c    Collectors
		bad  []LineError
		seen = map[string]int{}
	)
	lines := strings.Split(strings.TrimPrefix(text, "\ufeff"), "\n")
	for i := 0; i < len(lines); {
		if strings.HasPrefix(strings.TrimSpace(lines[i]), "#") {
			i++
			continue
		}
		rec, used, err := parseRecord(lines[i:])
		reason := ""
		switch {
		case err != nil:
			reason = err.Error()
		case rec != nil:
			reason = c.add(rec, i+1, seen)
		}
		if reason != "" {
			bad = append(bad, LineError{Line: i + 1, Text: strings.TrimSpace(lines[i]), Reason: reason})
		}
		i += used
	}
	return c, bad
}

// parseRecord parses the first record of lines and returns how many lines it
// has. A nil record is a comment or an empty line.
func parseRecord(lines []string) (rec []string, used int, err error) {
	var first error
	for used = 1; used <= min(len(lines), maxJoined); used++ {
		cr := csv.NewReader(strings.NewReader(strings.Join(lines[:used], "\n")))
		cr.Comment = '#'
		cr.FieldsPerRecord = -1
		cr.TrimLeadingSpace = true // so that a quote may follow ", "
		rec, err = cr.Read()
		if err == nil {
			return rec, used, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, 1, nil
		}
		if pe, ok := errors.AsType[*csv.ParseError](err); ok {
			err = pe.Err
		}
		if first == nil {
			first = err
		}
		if !errors.Is(err, csv.ErrQuote) {
			break
		}
	}
	return nil, 1, first
}

// add adds one record, or returns why it is invalid.
func (c *Collectors) add(rec []string, line int, seen map[string]int) (reason string) {
	if len(rec) != 3 {
		return fmt.Sprintf("it has %d columns instead of 3: field, type, help (quote a help text with commas)", len(rec))
	}
	name, typ, help := strings.TrimSpace(rec[0]), Type(strings.TrimSpace(rec[1])), strings.TrimSpace(rec[2])
	ref, name, known := resolve(name)
	if at, dup := seen[name]; dup {
		return fmt.Sprintf("%s is already on line %d", name, at)
	}
	if d, reason := parseDerived(name); d != NotDerived || reason != "" {
		if reason == "" {
			reason = c.addDerived(name, d, typ, help)
		}
		if reason == "" {
			seen[name] = line
		}
		return reason
	}
	if !known {
		return fmt.Sprintf("unknown field %q; a field of a newer DCGM can be given by its number", name)
	}
	f, inTable := gpu.Lookup(ref.Field)
	switch typ {
	case LabelType:
		c.Labels = append(c.Labels, LabelCollector{Name: name, Ref: ref})
	case Gauge, Counter, Histogram, Summary:
		if inTable && f.Kind == gpu.Label {
			return fmt.Sprintf("%s is a text: its type can only be label", name)
		}
		c.Metrics = append(c.Metrics, Collector{Name: name, Ref: ref, Type: typ, Help: help})
	default:
		return fmt.Sprintf("unknown type %q: it is one of gauge, counter, histogram, summary, label", typ)
	}
	seen[name] = line
	return ""
}

// resolve finds a field by a name of any profile or of DCGM, or by its number. It returns
// the name to show.
func resolve(name string) (ref gpu.Ref, shown string, ok bool) {
	if ref, ok := names.Metric(name); ok {
		return ref, name, true
	}
	if id, shown, ok := names.Passed(name); ok {
		return gpu.Ref{Field: id, Scale: 1}, shown, true
	}
	return gpu.Ref{}, name, false
}

// CSV returns the collectors as the text of a file, which ParseCollectors reads.
func (c *Collectors) CSV() string {
	var b strings.Builder
	w := csv.NewWriter(&b)
	for _, m := range c.Metrics {
		_ = w.Write([]string{m.Name, string(m.Type), m.Help}) // a strings.Builder takes everything
	}
	for _, l := range c.Labels {
		_ = w.Write([]string{l.Name, string(LabelType), l.Name})
	}
	w.Flush()
	return b.String()
}

// DefaultCSV returns the built-in list of a profile as the text of a file. An unknown
// profile is 4.8.
func DefaultCSV(profile string) string {
	known, err := names.ParseProfile(profile)
	if err != nil {
		known = names.Profile48
	}
	c := DefaultCollectors(known)
	return c.CSV()
}

// CheckCollectors returns the number of metrics that a file's text has, and what is wrong
// with it.
func CheckCollectors(text string) (metrics int, invalid []error) {
	c, bad := ParseCollectors(text)
	for _, e := range bad {
		invalid = append(invalid, e)
	}
	return len(c.Metrics), invalid
}
