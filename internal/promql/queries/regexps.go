// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/gpupilot/gpupilot/internal/base/weight"
)

// Text is what a query costs to parse, by its text. The parser compiles the strings that are regular expressions, and
// its time grows with the square of the nesting.
type Text struct {
	Strings      int // bytes of its strings
	Instructions int // of them as regular expressions
	Nesting      int // of parentheses, signs and powers
}

// TextOf only lexes a query. It runs before the parser.
func TextOf(promql string) (t Text) {
	lexer := parser.Lex(promql)
	open, deepest, signs, longest, powers := 0, 0, 0, 0, 0
	for {
		var item parser.Item
		lexer.NextItem(&item)
		if item.Typ != parser.ADD && item.Typ != parser.SUB && item.Typ != parser.COMMENT {
			signs = 0
		}
		switch item.Typ {
		case parser.EOF, parser.ERROR:
			t.Nesting = deepest + longest + powers
			return t
		case parser.LEFT_PAREN:
			open++
			deepest = max(deepest, open)
		case parser.RIGHT_PAREN:
			open--
		case parser.ADD, parser.SUB:
			signs++
			longest = max(longest, signs-1) // the first may be between two operands
		case parser.POW:
			powers++
		case parser.STRING:
			if s, err := strutil.Unquote(item.Val); err == nil {
				if t.Strings += len(s); t.Instructions <= weight.MostInstructions { // else the rest is not even parsed
					t.Instructions += weight.Instructions(s)
				}
			}
		}
	}
}

// Weigh returns a *weight.Error for a query that is too dear to parse. depth is the most that may be nested.
func (t Text) Weigh(depth int) error {
	if err := weight.CheckRegexps(t.Instructions); err != nil {
		return err
	}
	return weight.Check(weight.Query, "the query is nested %d deep", t.Nesting, depth, "use a recording rule")
}

// isLong reports whether a query is too long to be parsed and rewritten.
func isLong(promql string) bool {
	return len(promql) > maxRewritten || TextOf(promql).Weigh(maxNesting) != nil
}
