// SPDX-License-Identifier: Apache-2.0

package promscope

import (
	"regexp/syntax"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// maxRegexps bounds what the regular expressions of a query expand to, in
// instructions: 4 KiB of nested repetitions such as (a{31}){31} expand to a
// quarter of a million, which take seconds and hundreds of MiB to compile.
const maxRegexps = 20_000

// expansion is about how many instructions the strings of a query are as regular
// expressions. It parses nothing but strings, so that it can go before the parser,
// which compiles them.
func expansion(promql string) (n int) {
	lexer := parser.Lex(promql)
	for {
		var item parser.Item
		lexer.NextItem(&item)
		switch item.Typ {
		case parser.EOF, parser.ERROR:
			return n
		case parser.STRING:
			if s, err := strutil.Unquote(item.Val); err == nil {
				if re, err := syntax.Parse(s, syntax.Perl); err == nil {
					n += instructions(re)
				}
			}
		}
	}
}

// instructions is about how many instructions an expression is compiled to. The
// parser of regular expressions bounds nested repetitions to 1000, so that it fits.
func instructions(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}
