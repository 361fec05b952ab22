// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"errors"
	"math"
	"strconv"
)

// line is one parsed sample line. Its slices point into the page, or into scratch
// for a value with escapes. They are valid until the next parse.
type line struct {
	name    []byte
	labels  []label
	end     int // where the identity ends: after } or after the name
	value   float64
	stamp   int64 // ms since 1970; 0: the line has none
	scratch []byte

	facts  *labelFacts // the memo's entry for the labels; nil: none
	unread []byte      // well-formed labels that are not parsed yet
}

type label struct{ name, value []byte }

var (
	errName   = errors.New("no metric name")
	errLabels = errors.New("labels are malformed")
	errValue  = errors.New("value is not a number")
	errStamp  = errors.New("timestamp is not a number")
)

// release drops the references to the page.
func (l *line) release() {
	l.name, l.unread, l.facts = nil, nil, nil
	clear(l.labels[:cap(l.labels)])
}

// parse parses a sample line of the text format 0.0.4 or of OpenMetrics:
// name{label="value",...} value [timestamp] [# exemplar].
func (l *line) parse(b []byte) error {
	if err := l.parseIdentity(b); err != nil {
		return err
	}
	var err error
	l.value, l.stamp, err = parseTail(b[l.end:])
	return err
}

// parseKnown is parse for a line whose name ends at n, and whose labels up to end
// are known to be well-formed.
func (l *line) parseKnown(b []byte, n, end int) error {
	l.labels, l.scratch = l.labels[:0], l.scratch[:0]
	l.name, l.end, l.unread = b[:n], end, b[n:end]
	var err error
	l.value, l.stamp, err = parseTail(b[end:])
	return err
}

func (l *line) parseIdentity(b []byte) error {
	l.labels, l.scratch, l.unread = l.labels[:0], l.scratch[:0], nil
	i := skipBlank(b, 0)
	n := nameEnd(b, i)
	l.name, l.end = b[i:n], n
	i = skipBlank(b, n)
	if i < len(b) && b[i] == '{' {
		if err := l.parseLabels(b, i+1); err != nil {
			return err
		}
	}
	if len(l.name) == 0 {
		return errName
	}
	return nil
}

// parseLabels parses the labels from i, the position after the opening brace, and
// sets l.end to the position after the closing one. A quoted string without = is the
// metric's name: Prometheus 3 writes UTF-8 names so.
func (l *line) parseLabels(b []byte, i int) error {
	for {
		i = skipBlank(b, i)
		if i < len(b) && b[i] == '}' {
			l.end = i + 1
			return nil
		}
		name, next, err := l.labelName(b, i)
		if err != nil {
			return err
		}
		quoted := b[i] == '"'
		i = skipBlank(b, next)
		switch {
		case i < len(b) && b[i] == '=':
			i = skipBlank(b, i+1)
			value, next, ok := l.quoted(b, i)
			if !ok {
				return errLabels
			}
			l.labels = append(l.labels, label{name, value})
			i = skipBlank(b, next)
		case quoted && len(l.name) == 0:
			l.name = name
		default:
			return errLabels
		}
		switch {
		case i < len(b) && b[i] == ',':
			i++
		case i >= len(b) || b[i] != '}':
			return errLabels
		}
	}
}

func (l *line) labelName(b []byte, i int) (name []byte, next int, err error) {
	if i < len(b) && b[i] == '"' {
		name, next, ok := l.quoted(b, i)
		if !ok {
			return nil, 0, errLabels
		}
		return name, next, nil
	}
	next = nameEnd(b, i)
	if next == i {
		return nil, 0, errLabels
	}
	return b[i:next], next, nil
}

// quoted parses the quoted string at i, and returns the position after it. The
// escapes are \\, \" and \n.
func (l *line) quoted(b []byte, i int) (s []byte, next int, ok bool) {
	if i >= len(b) || b[i] != '"' {
		return nil, 0, false
	}
	i++
	end := bytes.IndexByte(b[i:], '"')
	if end < 0 {
		return nil, 0, false
	}
	if bytes.IndexByte(b[i:i+end], '\\') < 0 {
		return b[i : i+end], i + end + 1, true
	}
	from := len(l.scratch)
	for ; i < len(b); i++ {
		c := b[i]
		if c == '"' {
			return l.scratch[from:], i + 1, true
		}
		if c == '\\' && i+1 < len(b) {
			switch b[i+1] {
			case '\\', '"':
				i++
				c = b[i]
			case 'n':
				i++
				c = '\n'
			}
		}
		l.scratch = append(l.scratch, c)
	}
	return nil, 0, false
}

// get returns the value of a label; nil if the line does not have it.
func (l *line) get(name string) []byte {
	l.parseUnread()
	for _, x := range l.labels {
		if string(x.name) == name {
			return x.value
		}
	}
	return nil
}

// parseUnread parses the labels that are not parsed yet. It reports whether l.labels has
// all labels.
func (l *line) parseUnread() bool {
	if l.unread == nil {
		return true
	}
	end := l.end
	err := l.parseLabels(l.unread, 1) // cannot fail: the text is well-formed
	l.unread, l.end = nil, end
	return err == nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func skipBlank(b []byte, i int) int {
	for i < len(b) && isBlank(b[i]) {
		i++
	}
	return i
}

func nameEnd(b []byte, i int) int {
	from := i
	for ; i < len(b); i++ {
		c := b[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == ':':
		case c >= '0' && c <= '9' && i > from:
		default:
			return i
		}
	}
	return i
}

// parseTail parses the value after the identity, and the timestamp if there is one.
// A timestamp is in ms in the text format and in seconds in OpenMetrics. A number
// below 1e11 is in seconds: as ms it would be before March 1973, as seconds it is
// before the year 5138.
func parseTail(b []byte) (value float64, stamp int64, err error) {
	if v, ok := parsePlain(b); ok {
		return v, 0, nil
	}
	i := skipBlank(b, 0)
	if i == 0 {
		return 0, 0, errValue
	}
	end := wordEnd(b, i)
	value, ok := parseFloat(b[i:end])
	if !ok {
		return 0, 0, errValue
	}
	i = skipBlank(b, end)
	if i == len(b) || b[i] == '#' {
		return value, 0, nil
	}
	end = wordEnd(b, i)
	t, ok := parseFloat(b[i:end])
	if ok && t < 1e11 {
		t *= 1000
	}
	if !ok || !(math.Abs(t) < 1000*maxUnix) {
		return 0, 0, errStamp
	}
	if i = skipBlank(b, end); i < len(b) && b[i] != '#' {
		return 0, 0, errStamp
	}
	return value, int64(math.Round(t)), nil
}

// parsePlain is parseTail for the most common form, in one pass: a blank and up to
// 15 digits with at most one decimal point.
func parsePlain(b []byte) (float64, bool) {
	if len(b) < 2 || len(b) > 17 || b[0] != ' ' {
		return 0, false
	}
	var digits uint64
	point := 0
	for i := 1; i < len(b); i++ {
		if c := b[i] - '0'; c <= 9 {
			digits = digits*10 + uint64(c)
			continue
		}
		if b[i] != '.' || point > 0 {
			return 0, false
		}
		point = i
	}
	switch {
	case point == 0:
		return float64(digits), len(b) <= 16
	case len(b) == 2: // the point alone
		return 0, false
	}
	return float64(digits) / pow10[len(b)-1-point], true
}

func wordEnd(b []byte, i int) int {
	for i < len(b) && !isBlank(b[i]) {
		i++
	}
	return i
}

// pow10 are the powers of ten for parsePlain and parseFloat. float64 represents them
// exactly.
var pow10 = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// parseFloat is strconv.ParseFloat with a fast path for up to 15 digits without an
// exponent. The digits and the power of ten are exact, so one division rounds
// correctly.
func parseFloat(b []byte) (float64, bool) {
	var digits uint64
	n, point := 0, -1
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9' && n < 15:
			digits = digits*10 + uint64(c-'0')
			n++
		case c == '.' && point < 0:
			point = i
		default:
			return parseAnyFloat(b)
		}
	}
	if n == 0 {
		return parseAnyFloat(b)
	}
	if point < 0 {
		return float64(digits), true
	}
	return float64(digits) / pow10[len(b)-1-point], true
}

// parseAnyFloat is strconv.ParseFloat without hexadecimal numbers and underscores,
// which Prometheus does not accept either.
func parseAnyFloat(b []byte) (float64, bool) {
	if len(b) == 0 || len(b) > 64 || bytes.ContainsAny(b, "pP_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(b), 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, false
	}
	return v, true
}
