// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// maxFilter bounds a filter, in bytes.
const maxFilter = 512

// Filter selects rows, in the words of k9s: a regular expression, !EXPRESSION for the rows
// that do not match, -l KEY=VALUE,KEY!=VALUE for labels of rows, -f TEXT for letters in that order.
type Filter struct {
	text    string
	inverse bool
	expr    *regexp.Regexp
	labels  []labelTerm
	fuzzy   string
}

type labelTerm struct {
	key, value string
	not        bool
}

// ParseFilter parses a filter. An expression without upper-case letters ignores the case.
func ParseFilter(s string) (*Filter, error) {
	s = strings.TrimSpace(s)
	if len(s) > maxFilter {
		return nil, fmt.Errorf("the filter has %d bytes, want at most %d", len(s), maxFilter)
	}
	f := &Filter{text: s}
	if rest, ok := strings.CutPrefix(s, "-l"); ok && (rest == "" || rest[0] == ' ') {
		return f, f.parseLabels(strings.TrimSpace(rest))
	}
	if rest, ok := strings.CutPrefix(s, "-f"); ok && (rest == "" || rest[0] == ' ') {
		f.fuzzy = strings.ToLower(strings.TrimSpace(rest))
		return f, nil
	}
	expr := s
	if rest, ok := strings.CutPrefix(s, "!"); ok {
		f.inverse, expr = rest != "", rest
	}
	if expr == "" {
		return f, nil
	}
	if !strings.ContainsFunc(expr, unicode.IsUpper) {
		expr = "(?i)" + expr
	}
	var err error
	if f.expr, err = regexp.Compile(expr); err != nil {
		return nil, fmt.Errorf("the filter is no regular expression: %w", err)
	}
	return f, nil
}

func (f *Filter) parseLabels(s string) error {
	if s == "" {
		return nil
	}
	for term := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(term, "=")
		not := strings.HasSuffix(key, "!")
		key, value = strings.TrimSpace(strings.TrimSuffix(key, "!")), strings.TrimSpace(strings.TrimPrefix(value, "="))
		if !ok || key == "" {
			return fmt.Errorf("%.80q is not KEY=VALUE or KEY!=VALUE", term)
		}
		f.labels = append(f.labels, labelTerm{key, value, not})
	}
	return nil
}

// Empty reports whether the filter selects all rows.
func (f *Filter) Empty() bool { return f.expr == nil && len(f.labels) == 0 && f.fuzzy == "" }

// String returns the filter as it was written.
func (f *Filter) String() string { return f.text }

// Literal returns the filter as a plain text to search for; empty: it is none.
func (f *Filter) Literal() string {
	if f.expr == nil || f.inverse || regexp.QuoteMeta(f.text) != f.text {
		return ""
	}
	return f.text
}

// Match reports whether the filter selects a row.
func (f *Filter) Match(r *Row) bool {
	for _, t := range f.labels {
		if (r.Labels[t.key] == t.value) == t.not {
			return false
		}
	}
	if f.fuzzy != "" {
		return containsInOrder(strings.ToLower(r.words()), f.fuzzy)
	}
	return f.expr == nil || f.expr.MatchString(r.words()) != f.inverse
}

// words are the texts of a row.
func (r *Row) words() string {
	var b strings.Builder
	b.WriteString(termtext.Clean(r.ID))
	for i := range r.Cells {
		b.WriteByte(' ')
		b.WriteString(r.Cells[i].Text)
	}
	return b.String()
}

// containsInOrder reports whether the characters of part are in s in that order.
func containsInOrder(s, part string) bool {
	for _, r := range part {
		i := strings.IndexRune(s, r)
		if i < 0 {
			return false
		}
		s = s[i+len(string(r)):]
	}
	return true
}
