// SPDX-License-Identifier: Apache-2.0

package history

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"unicode/utf8"
)

// Metric is a metric of /metrics with its labels, as Prometheus writes it:
//
//	gpupilot_autoscaler_signal_value{per="replica",signal="Utilization",unit="%"}
//
// The labels of its workload and the label stat are not in it. Two metrics are equal if
// their texts are: labels are sorted, and those without a value are left out.
type Metric string

// escaper and unescaper are those of Prometheus's text format.
var (
	escaper   = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	unescaper = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\"`, `"`)
)

// NewMetric returns the metric of a name with labels, which are names and values in pairs.
// Bytes that are not UTF-8 are left out. A metric that is too long is refused by Append.
func NewMetric(name string, labels ...string) Metric {
	var list []string
	for i := 0; i+1 < len(labels); i += 2 {
		if v := strings.ToValidUTF8(labels[i+1], ""); v != "" {
			list = append(list, labels[i]+`="`+escaper.Replace(v)+`"`)
		}
	}
	if len(list) == 0 {
		return Metric(name)
	}
	slices.Sort(list)
	return Metric(name + "{" + strings.Join(list, ",") + "}")
}

// ParseMetric parses a metric. Its labels may be in any order, with spaces between them.
func ParseMetric(text string) (Metric, error) {
	name, rest, hasLabels := strings.Cut(text, "{")
	if name == "" {
		return "", errors.New("no name of a metric")
	}
	if !hasLabels {
		return Metric(name), nil
	}
	var pairs []string
	for rest = strings.TrimLeft(rest, " "); rest != "}"; {
		label, value, after, ok := cutLabel(rest)
		if !ok {
			return "", fmt.Errorf(`want NAME{LABEL="VALUE",…} instead of %.40q`, rest)
		}
		pairs = append(pairs, label, value)
		rest = strings.TrimLeft(after, ", ")
	}
	return NewMetric(name, pairs...), nil
}

// Name returns the name of a metric without its labels.
func (m Metric) Name() string {
	name, _, _ := strings.Cut(string(m), "{")
	return name
}

// Labels returns the labels of a metric, sorted by name.
func (m Metric) Labels() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		_, rest, _ := strings.Cut(string(m), "{")
		for {
			name, value, after, ok := cutLabel(rest)
			if !ok || !yield(name, value) {
				return
			}
			rest = strings.TrimPrefix(after, ",")
		}
	}
}

// cutLabel cuts NAME="VALUE" off a text.
func cutLabel(text string) (name, value, rest string, ok bool) {
	name, quoted, ok := strings.Cut(text, `="`)
	if !ok || name == "" {
		return "", "", text, false
	}
	for i := 0; i < len(quoted); i++ {
		switch quoted[i] {
		case '\\':
			i++
		case '"':
			return name, unescaper.Replace(quoted[:i]), quoted[i+1:], true
		}
	}
	return "", "", text, false
}

// Selects reports whether a metric has the name and all labels of m.
func (m Metric) Selects(other Metric) bool {
	if m.Name() != other.Name() {
		return false
	}
	has := map[string]string{}
	for name, value := range other.Labels() {
		has[name] = value
	}
	for name, value := range m.Labels() {
		if has[name] != value {
			return false
		}
	}
	return true
}

// valid reports whether a metric can be stored.
func (m Metric) valid() bool { return m != "" && len(m) <= MaxMetric && utf8.ValidString(string(m)) }
