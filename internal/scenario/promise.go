// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// promise is something that must hold, whatever the decisions are in detail. It
// is written by hand and no update touches it.
type promise struct {
	line     int
	text     string
	from, to time.Duration
	once     bool // at any moment of the span, not at each
	what     string
	op       string
	want     string
}

var operators = []string{"!=", "<=", ">=", "=", "<", ">"}

// parsePromises reads lines of a span (90s, 1m-5m, always; once before it) and
// one comparison.
func parsePromises(b []byte) (out []promise, err error) {
	for _, l := range lines(b) {
		p := promise{line: l.line, text: l.text}
		rest := l.text
		if after, ok := strings.CutPrefix(rest, "once "); ok {
			p.once, rest = true, strings.TrimSpace(after)
		}
		span, check, _ := strings.Cut(rest, " ")
		if p.from, p.to, err = parseSpan(span); err == nil {
			err = p.check(strings.TrimSpace(check))
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", l.line, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func parseSpan(s string) (from, to time.Duration, err error) {
	if s == "always" {
		return 0, math.MaxInt64, nil
	}
	a, b, two := strings.Cut(s, "-")
	if from, err = parseTime(a); err != nil || !two {
		return from, from, err
	}
	to, err = parseTime(b)
	return from, to, err
}

func (p *promise) check(s string) error {
	i := strings.IndexAny(s, "!<>=")
	if i < 0 {
		return fmt.Errorf("%q compares nothing: want such as replicas<=4 or rule=Starting", s)
	}
	for _, op := range operators {
		if strings.HasPrefix(s[i:], op) {
			p.what, p.op, p.want = strings.TrimSpace(s[:i]), op, strings.Trim(strings.TrimSpace(s[i+len(op):]), `"`)
			break
		}
	}
	switch p.what {
	case "rule", "says", "victims":
		if p.op == "=" || p.op == "!=" {
			return nil
		}
		return fmt.Errorf("%s can be = or !=, not %s", p.what, p.op)
	case "replicas", "ups", "downs":
		if _, err := strconv.Atoi(p.want); err != nil {
			return fmt.Errorf("%q: want a whole number", p.want)
		}
		return nil
	}
	return fmt.Errorf("%q is nothing to promise: want replicas, ups, downs, rule, says or victims", p.what)
}

// Broken are the promises that a run did not keep, each with the first moment
// that shows it.
func (s *Scenario) Broken(moments []Moment) (out []error) {
	for i := range s.promises {
		if err := s.promises[i].broken(moments); err != nil {
			out = append(out, fmt.Errorf("%s line %d: %s: %w", promisesSection, s.promises[i].line, s.promises[i].text, err))
		}
	}
	return out
}

func (p *promise) broken(moments []Moment) error {
	var seen []Moment
	for _, m := range moments {
		if m.At >= p.from && m.At <= p.to {
			seen = append(seen, m)
		}
	}
	if len(seen) == 0 {
		return fmt.Errorf("nothing was decided then")
	}
	switch p.what {
	case "ups":
		return p.compare(changes(seen, +1))
	case "downs":
		return p.compare(changes(seen, -1))
	}
	var first error
	for i := range seen {
		err := p.at(&seen[i])
		if err == nil && p.once {
			return nil
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// at checks one moment.
func (p *promise) at(m *Moment) (err error) {
	d := &m.Decision
	switch p.what {
	case "replicas":
		err = p.compare(int(d.Replicas))
	case "rule":
		err = p.equal(string(d.Rule), string(d.Rule) == p.want)
	case "says":
		err = p.equal(d.Sentence(), strings.Contains(d.Sentence(), p.want))
	case "victims": // the first of them; none where none are named
		got := strings.Join(d.Victims, ",")
		err = p.equal(got, got == p.want || p.want != "" && strings.HasPrefix(got, p.want+","))
	}
	if err != nil {
		return fmt.Errorf("at %v %w (%s: %s)", m.At, err, d.Rule, d.Sentence())
	}
	return nil
}

func (p *promise) equal(got string, same bool) error {
	if same != (p.op == "=") {
		return fmt.Errorf("%s is %q", p.what, got)
	}
	return nil
}

func (p *promise) compare(got int) error {
	want, err := strconv.Atoi(p.want)
	if err != nil {
		return err
	}
	holds := map[string]bool{"=": got == want, "!=": got != want, "<=": got <= want, ">=": got >= want, "<": got < want, ">": got > want}[p.op]
	if !holds {
		return fmt.Errorf("%s: %d", p.what, got)
	}
	return nil
}

// changes counts the moments that went in a direction.
func changes(moments []Moment, sign int) (n int) {
	for i := range moments {
		d := &moments[i].Decision
		if int(d.Replicas-d.Current)*sign > 0 {
			n++
		}
	}
	return n
}
