// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"fmt"
	"strings"
)

// page is an exposition as it was written: with the order of labels, which
// parsers of samples drop, and with what no parser would take.
type page struct {
	help, typ map[string][]string // by metric, one for each line
	series    []series
	bad       []string // lines that are no exposition
}

type label struct{ name, value string }

type series struct {
	name   string
	labels []label
	value  string
}

func parsePage(text string) page {
	p := page{help: map[string][]string{}, typ: map[string][]string{}}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.TrimSpace(line) == "":
		case strings.HasPrefix(line, "# HELP "):
			name, rest, _ := strings.Cut(line[len("# HELP "):], " ")
			p.help[name] = append(p.help[name], rest)
		case strings.HasPrefix(line, "# TYPE "):
			name, rest, _ := strings.Cut(line[len("# TYPE "):], " ")
			p.typ[name] = append(p.typ[name], rest)
		case strings.HasPrefix(line, "#"):
		default:
			s, err := parseSeries(line)
			if err != nil {
				p.bad = append(p.bad, line)
				continue
			}
			p.series = append(p.series, s)
		}
	}
	return p
}

// parseSeries parses name{label="value",…} value.
func parseSeries(line string) (series, error) {
	at := strings.IndexAny(line, "{ ")
	if at <= 0 {
		return series{}, fmt.Errorf("no metric name in %q", line)
	}
	s := series{name: line[:at]}
	rest := line[at:]
	if rest[0] == '{' {
		var err error
		if s.labels, rest, err = parseLabels(rest[1:]); err != nil {
			return series{}, err
		}
	}
	value, ok := strings.CutPrefix(rest, " ")
	if !ok || value == "" || strings.ContainsAny(value, " {}\"") {
		return series{}, fmt.Errorf("no value in %q", line)
	}
	s.value = value
	return s, nil
}

// parseLabels parses what follows {, and gives what follows }.
func parseLabels(text string) (labels []label, rest string, err error) {
	for {
		if rest, ok := strings.CutPrefix(text, "}"); ok {
			return labels, rest, nil
		}
		name, after, ok := strings.Cut(text, `="`)
		if !ok || strings.ContainsAny(name, "{}, \"") {
			return nil, "", fmt.Errorf("no label in %q", text)
		}
		value, after, ok := unquote(after)
		if !ok {
			return nil, "", fmt.Errorf("no end of the label's value in %q", text)
		}
		labels = append(labels, label{name, value})
		text = strings.TrimPrefix(after, ",")
		if text == after && !strings.HasPrefix(text, "}") {
			return nil, "", fmt.Errorf("neither a comma nor a brace at %q", text)
		}
	}
}

// unquote gives the value up to its closing quote, and what follows that.
func unquote(text string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"':
			return b.String(), text[i+1:], true
		case '\\':
			i++
			if i == len(text) || !strings.ContainsRune(`\"n`, rune(text[i])) {
				return "", "", false
			}
			if text[i] == 'n' {
				b.WriteByte('\n')
				continue
			}
			b.WriteByte(text[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

func (s *series) get(name string) (string, bool) {
	for _, l := range s.labels {
		if l.name == name {
			return l.value, true
		}
	}
	return "", false
}

func (s *series) String() string {
	var b strings.Builder
	b.WriteString(s.name)
	b.WriteByte('{')
	for i, l := range s.labels {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%q", l.name, l.value)
	}
	b.WriteByte('}')
	return b.String()
}
