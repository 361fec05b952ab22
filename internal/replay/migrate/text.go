// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"io"
	"strings"

	"sigs.k8s.io/yaml"
)

// textWidth is the width of wrapped lines.
const textWidth = 110

// Print writes the report for a terminal.
func (r *AdapterReport) Print(w io.Writer) error {
	var b strings.Builder
	counts := map[Becomes]int{}
	for i := range r.Rules {
		x := &r.Rules[i]
		counts[x.Becomes]++
		title := x.Rule
		if x.Metric != "" {
			title += "  " + x.Metric
		}
		fmt.Fprintf(&b, "%s: %s\n", title, x.Becomes)
		if x.SeriesQuery != "" {
			fmt.Fprintf(&b, "  series  %s\n", x.SeriesQuery)
		}
		writeWrapped(&b, "  why     ", x.Why)
		writeWrapped(&b, "  do      ", x.Do)
		if x.Signal != nil {
			text, err := yaml.Marshal(x.Signal)
			if err != nil {
				return err
			}
			writeIndented(&b, "  signal  ", strings.TrimSpace(string(text)))
		}
		b.WriteByte('\n')
	}
	for _, text := range r.Warnings {
		writeWrapped(&b, "warning: ", text)
	}
	if len(r.Warnings) > 0 {
		b.WriteByte('\n')
	}
	var parts []string
	for _, x := range []Becomes{BuiltIn, Signal, RecordingRule, Served, Impossible} {
		if counts[x] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", x, counts[x]))
		}
	}
	fmt.Fprintf(&b, "%d rules: %s\n", len(r.Rules), strings.Join(parts, ", "))
	_, err := io.WriteString(w, b.String())
	return err
}

// writeWrapped writes a text after a heading, in lines of at most textWidth characters.
func writeWrapped(b *strings.Builder, heading, text string) {
	indent := strings.Repeat(" ", len(heading))
	line := heading
	for _, word := range strings.Fields(text) {
		if len(line) > len(indent) && len(line)+len(word) > textWidth {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// writeIndented writes the lines of a text after a heading.
func writeIndented(b *strings.Builder, heading, text string) {
	for i, line := range strings.Split(text, "\n") {
		if i > 0 {
			heading = strings.Repeat(" ", len(heading))
		}
		b.WriteString(heading + line + "\n")
	}
}

// YAML returns the GPUAutoscaler as YAML. Comments before it list the fields of the source
// object that differ or have no equivalent.
func (r *Result) YAML() (string, error) {
	text, err := marshalSpec(r)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# The equivalent of the %s %s.\n", r.Kind, plain(r.Name))
	for _, lost := range []bool{true, false} {
		first := true
		for _, n := range r.Notes {
			if n.Lost != lost {
				continue
			}
			if first {
				b.WriteString(map[bool]string{true: "# Without an equivalent:\n", false: "# Different:\n"}[lost])
				first = false
			}
			writeWrapped(&b, "#   ", n.Field+": "+n.Text)
		}
	}
	out := strings.Builder{}
	for _, line := range strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") {
		if !strings.HasPrefix(line, "#") { // a wrapped line
			line = "#     " + strings.TrimSpace(line)
		}
		out.WriteString(line + "\n")
	}
	return out.String() + text, nil
}

// marshalSpec returns the object without its status.
func marshalSpec(r *Result) (string, error) {
	b, err := yaml.Marshal(r.Object)
	if err != nil {
		return "", err
	}
	var fields map[string]any
	if err := yaml.Unmarshal(b, &fields); err != nil {
		return "", err
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	b, err = yaml.Marshal(fields)
	return string(b), err
}
