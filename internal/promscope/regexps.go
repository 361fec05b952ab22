// SPDX-License-Identifier: Apache-2.0

package promscope

import (
	"regexp/syntax"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"
)

// maxRegexpSize bounds the compiled size of a query's regular expressions, in
// instructions. 4 KiB of nested repetitions such as (a{31}){31} compile to a quarter of
// a million instructions, which takes seconds and hundreds of MiB.
const maxRegexpSize = 20_000

// regexpSize estimates the instructions of a query's strings, compiled as regular
// expressions. It only lexes the query, and runs before the parser, which compiles
// them.
func regexpSize(promql string) (n int) {
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
					n += instructionCount(re)
				}
			}
		}
	}
}

// instructionCount estimates the compiled size of an expression. It cannot overflow,
// because the parser limits nested repetitions to 1000.
func instructionCount(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += instructionCount(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}
