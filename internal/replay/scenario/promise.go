// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// promise is an assertion about the decisions of a span. It is written by hand, and
// -update does not change it.
type promise struct {
	line     int
	text     string
	from, to time.Duration
	isOnce   bool // it must hold at one moment of the span, else at every moment
	subject  string
	op       string
	want     string
}

var operators = []string{"!=", "<=", ">=", "=", "<", ">"}

// parsePromises parses lines of a span (90s, 1m-5m or always; optionally after once)
// and one comparison.
func parsePromises(b []byte) (out []promise, err error) {
	for _, l := range lines(b) {
		p := promise{line: l.line, text: l.text}
		rest := l.text
		if after, ok := strings.CutPrefix(rest, "once "); ok {
			p.isOnce, rest = true, strings.TrimSpace(after)
		}
		span, check, _ := strings.Cut(rest, " ")
		if p.from, p.to, err = parseSpan(span); err == nil {
			err = p.parseCheck(strings.TrimSpace(check))
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
	a, b, isRange := strings.Cut(s, "-")
	if from, err = parseTime(a); err != nil || !isRange {
		return from, from, err
	}
	to, err = parseTime(b)
	return from, to, err
}

func (p *promise) parseCheck(s string) error {
	i := strings.IndexAny(s, "!<>=")
	if i < 0 {
		return fmt.Errorf("%q is not a comparison: want one such as replicas<=4 or rule=Starting", s)
	}
	for _, op := range operators {
		if strings.HasPrefix(s[i:], op) {
			p.subject, p.op, p.want = strings.TrimSpace(s[:i]), op, strings.Trim(strings.TrimSpace(s[i+len(op):]), `"`)
			break
		}
	}
	switch p.subject {
	case "rule", "says", "victims":
		if p.op == "=" || p.op == "!=" {
			return nil
		}
		return fmt.Errorf("%s does not support the operator %s: want = or !=", p.subject, p.op)
	case "replicas", "ups", "downs":
		if _, err := strconv.Atoi(p.want); err != nil {
			return fmt.Errorf("%s: %q: want a whole number", p.subject, p.want)
		}
		return nil
	}
	return fmt.Errorf("unknown subject %q: want replicas, ups, downs, rule, says or victims", p.subject)
}

// Broken returns an error for each promise that a run breaks, with the first moment at
// which it does.
func (s *Scenario) Broken(moments []Moment) (out []error) {
	for i := range s.promises {
		if err := s.promises[i].verify(moments); err != nil {
			out = append(out, fmt.Errorf("%s line %d: %s: %w", promisesSection, s.promises[i].line, s.promises[i].text, err))
		}
	}
	return out
}

func (p *promise) verify(moments []Moment) error {
	var inSpan []Moment
	for _, m := range moments {
		if m.At >= p.from && m.At <= p.to {
			inSpan = append(inSpan, m)
		}
	}
	if len(inSpan) == 0 {
		return fmt.Errorf("no decision in this span")
	}
	switch p.subject {
	case "ups":
		return p.verifyNumber(countChanges(inSpan, +1))
	case "downs":
		return p.verifyNumber(countChanges(inSpan, -1))
	}
	var first error
	for i := range inSpan {
		err := p.verifyMoment(&inSpan[i])
		if err == nil && p.isOnce {
			return nil
		}
		if err != nil && first == nil {
			first = err
		}
	}
	return first
}

// verifyMoment checks one moment.
func (p *promise) verifyMoment(m *Moment) (err error) {
	d := &m.Decision
	switch p.subject {
	case "replicas":
		err = p.verifyNumber(int(d.Replicas))
	case "rule":
		err = p.verifyText(string(d.Rule), string(d.Rule) == p.want)
	case "says":
		err = p.verifyText(d.Sentence(), strings.Contains(d.Sentence(), p.want))
	case "victims": // compares the first victims; an empty value means no victims
		got := strings.Join(d.Victims, ",")
		err = p.verifyText(got, got == p.want || p.want != "" && strings.HasPrefix(got, p.want+","))
	}
	if err != nil {
		return fmt.Errorf("at %v %w (%s: %s)", m.At, err, d.Rule, d.Sentence())
	}
	return nil
}

func (p *promise) verifyText(got string, same bool) error {
	if same != (p.op == "=") {
		return fmt.Errorf("%s is %q", p.subject, got)
	}
	return nil
}

func (p *promise) verifyNumber(got int) error {
	want, err := strconv.Atoi(p.want)
	if err != nil {
		return err
	}
	holds := map[string]bool{"=": got == want, "!=": got != want, "<=": got <= want, ">=": got >= want, "<": got < want, ">": got > want}[p.op]
	if !holds {
		return fmt.Errorf("%s: %d", p.subject, got)
	}
	return nil
}

// countChanges counts the moments that changed the replicas in a direction, not those that wait.
func countChanges(moments []Moment, sign int) (n int) {
	for i := range moments {
		d := &moments[i].Decision
		if !moments[i].Waits && int(d.Replicas-d.Current)*sign > 0 {
			n++
		}
	}
	return n
}
