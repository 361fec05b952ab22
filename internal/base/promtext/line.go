// SPDX-License-Identifier: Apache-2.0

// Package promtext reads sample lines of the Prometheus text format and of OpenMetrics, without a copy of what they say.
package promtext

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strconv"
)

// Line is one parsed sample line. Its slices point into the page, or, for a value with
// escapes, into memory of the line. They are valid until the next Parse.
type Line struct {
	Name   []byte
	Labels []Label // of a line of ParseKnown after All
	End    int     // where the identity ends: after } or after the name
	Value  float64
	Stamp  int64 // ms since 1970; 0: the line has none

	scratch []byte
	unread  []byte // well-formed labels that are not parsed yet
}

// Label is a label of a line, without quotes and escapes.
type Label struct{ Name, Value []byte }

// What is wrong with a line.
var (
	ErrName   = errors.New("no metric name")
	ErrLabels = errors.New("labels are malformed")
	ErrValue  = errors.New("value is not a number")
	ErrStamp  = errors.New("timestamp is not a number")
)

// Release drops the references to the page.
func (l *Line) Release() {
	l.Name, l.unread = nil, nil
	clear(l.Labels[:cap(l.Labels)])
}

// Parse parses a sample line of the text format 0.0.4 or of OpenMetrics:
// name{label="value",...} value [timestamp] [# exemplar].
func (l *Line) Parse(b []byte) error {
	if err := l.parseIdentity(b); err != nil {
		return err
	}
	var err error
	l.Value, l.Stamp, err = Tail(b[l.End:])
	return err
}

// ParseKnown is Parse for a line whose name ends at n, and whose labels up to end
// are known to be well-formed.
func (l *Line) ParseKnown(b []byte, n, end int) error {
	l.Labels, l.scratch = l.Labels[:0], l.scratch[:0]
	l.Name, l.End, l.unread = b[:n], end, b[n:end]
	var err error
	l.Value, l.Stamp, err = Tail(b[end:])
	return err
}

func (l *Line) parseIdentity(b []byte) error {
	l.Labels, l.scratch, l.unread = l.Labels[:0], l.scratch[:0], nil
	i := skipBlank(b, 0)
	n := NameEnd(b, i)
	l.Name, l.End = b[i:n], n
	i = skipBlank(b, n)
	if i < len(b) && b[i] == '{' {
		if err := l.parseLabels(b, i+1); err != nil {
			return err
		}
	}
	if len(l.Name) == 0 {
		return ErrName
	}
	return nil
}

// parseLabels parses the labels from i, the position after the opening brace, and
// sets l.End to the position after the closing one. A quoted string without = is the
// metric's name: Prometheus 3 writes UTF-8 names so.
func (l *Line) parseLabels(b []byte, i int) error {
	for {
		i = skipBlank(b, i)
		if i < len(b) && b[i] == '}' {
			l.End = i + 1
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
				return ErrLabels
			}
			l.Labels = append(l.Labels, Label{name, value})
			i = skipBlank(b, next)
		case quoted && len(l.Name) == 0:
			l.Name = name
		default:
			return ErrLabels
		}
		switch {
		case i < len(b) && b[i] == ',':
			i++
		case i >= len(b) || b[i] != '}':
			return ErrLabels
		}
	}
}

func (l *Line) labelName(b []byte, i int) (name []byte, next int, err error) {
	if i < len(b) && b[i] == '"' {
		name, next, ok := l.quoted(b, i)
		if !ok {
			return nil, 0, ErrLabels
		}
		return name, next, nil
	}
	next = NameEnd(b, i)
	if next == i {
		return nil, 0, ErrLabels
	}
	return b[i:next], next, nil
}

// quoted parses the quoted string at i, and returns the position after it. The
// escapes are \\, \" and \n.
func (l *Line) quoted(b []byte, i int) (s []byte, next int, ok bool) {
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

// Get returns the value of a label; nil if the line does not have it.
func (l *Line) Get(name string) []byte {
	l.All()
	for _, x := range l.Labels {
		if string(x.Name) == name {
			return x.Value
		}
	}
	return nil
}

// All parses the labels of a line of ParseKnown. It reports whether l.Labels has
// all labels.
func (l *Line) All() bool {
	if l.unread == nil {
		return true
	}
	end := l.End
	err := l.parseLabels(l.unread, 1) // cannot fail: the text is well-formed
	l.unread, l.End = nil, end
	return err == nil
}

// String returns the line as tests and messages show it: name label="value" value @stamp.
func (l *Line) String() string {
	l.All()
	b := slices.Clone(l.Name)
	for _, x := range l.Labels {
		b = append(append(append(b, ' '), x.Name...), '=')
		b = strconv.AppendQuote(b, string(x.Value))
	}
	b = strconv.AppendFloat(append(b, ' '), l.Value, 'g', -1, 64)
	if l.Stamp != 0 {
		b = strconv.AppendInt(append(b, " @"...), l.Stamp, 10)
	}
	return string(b)
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func skipBlank(b []byte, i int) int {
	for i < len(b) && isBlank(b[i]) {
		i++
	}
	return i
}

// NameEnd returns where the name ends that begins at i: i itself if there is none.
func NameEnd(b []byte, i int) int {
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

// IdentityEnd guesses the end of a line's identity: after its last closing brace, or
// at the first blank if it has no brace. Parse tells whether
// it is right.
func IdentityEnd(b []byte) int {
	if i := bytes.LastIndexByte(b, '}'); i >= 0 {
		return i + 1
	}
	if bytes.IndexByte(b, '{') >= 0 {
		return 0
	}
	return wordEnd(b, 0)
}

// MaxUnix is a time in seconds since 1970 (in the year 2255) that fits an int64 of
// nanoseconds.
const MaxUnix = 9e9

// Tail parses the value after the identity, and the timestamp if there is one.
// A timestamp is in ms in the text format and in seconds in OpenMetrics. A number
// below 1e11 is in seconds: as ms it would be before March 1973, as seconds it is
// before the year 5138.
func Tail(b []byte) (value float64, stamp int64, err error) {
	if v, ok := parsePlain(b); ok {
		return v, 0, nil
	}
	i := skipBlank(b, 0)
	if i == 0 {
		return 0, 0, ErrValue
	}
	end := wordEnd(b, i)
	value, ok := Float(b[i:end])
	if !ok {
		return 0, 0, ErrValue
	}
	i = skipBlank(b, end)
	if i == len(b) || b[i] == '#' {
		return value, 0, nil
	}
	end = wordEnd(b, i)
	t, ok := Float(b[i:end])
	if ok && t < 1e11 {
		t *= 1000
	}
	if !ok || !(math.Abs(t) < 1000*MaxUnix) {
		return 0, 0, ErrStamp
	}
	if i = skipBlank(b, end); i < len(b) && b[i] != '#' {
		return 0, 0, ErrStamp
	}
	return value, int64(math.Round(t)), nil
}

// parsePlain is Tail for the most common form, in one pass: a blank and up to
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

// pow10 are the powers of ten for parsePlain and Float. float64 represents them
// exactly.
var pow10 = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// Float is strconv.ParseFloat with a fast path for up to 15 digits without an
// exponent. The digits and the power of ten are exact, so one division rounds
// correctly.
func Float(b []byte) (float64, bool) {
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
