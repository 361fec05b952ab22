// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/strutil"

	"github.com/gpupilot/gpupilot/internal/base/regexpsize"
)

// MaxRegexpSize bounds the compiled size of a query's regular expressions, in
// instructions.
const MaxRegexpSize = 20_000

// RegexpSize estimates the instructions of a query's strings, compiled as regular
// expressions. It only lexes the query, and runs before the parser, which compiles
// them.
func RegexpSize(promql string) (n int) {
	lexer := parser.Lex(promql)
	for {
		var item parser.Item
		lexer.NextItem(&item)
		switch item.Typ {
		case parser.EOF, parser.ERROR:
			return n
		case parser.STRING:
			if s, err := strutil.Unquote(item.Val); err == nil {
				n += regexpsize.Instructions(s)
			}
		}
	}
}
