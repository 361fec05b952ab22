// SPDX-License-Identifier: Apache-2.0

package weight

import (
	"regexp"
	"regexp/syntax"
	"strings"
)

// MostInstructions is the most that the regular expressions of one query may weigh. 4 KiB of nested repetitions such as
// (a{31}){31} compile to a quarter of a million instructions, which takes seconds and hundreds of MiB.
const MostInstructions = 20_000

const (
	// classWeight is that of a class of most of the runes that have cases, such as [^/]: Prometheus looks at each of them,
	// which takes 7 ms. By the text alone it is also that of a class of Unicode, of which 4 KiB in (?i)[\pL…] take 80 MiB to
	// parse, and with (?i) of each class.
	classWeight = 2000
	// The runes that have cases are from firstCase to lastCase.
	firstCase, lastCase = 'A', 0x1e943
	// freeGroups are the groups that weigh nothing. A match copies the places of all groups for each instruction.
	freeGroups = 8
)

// Instructions estimates what a regular expression costs: its instructions, more with many groups. It is 0 for text
// that is not one.
func Instructions(pattern string) int {
	if n := classWeight * classes(pattern); n > MostInstructions {
		return n
	}
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return count(re) * (1 + re.MaxCap()/freeGroups)
}

// classes counts the classes of a text that are dear to parse.
func classes(pattern string) (n int) {
	for _, class := range []string{`\p`, `\P`} {
		n += strings.Count(pattern, class)
	}
	if folds.MatchString(pattern) {
		for _, class := range []string{`[`, `\w`, `\W`, `\d`, `\D`, `\s`, `\S`} {
			n += strings.Count(pattern, class)
		}
	}
	return n
}

// folds finds the flag of patterns that ignore case.
var folds = regexp.MustCompile(`\(\?[a-zA-Z]*i`)

// count cannot overflow, because the parser limits nested repetitions to 1000.
func count(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	if re.Op == syntax.OpCharClass {
		runes := 0
		for i := 0; i+1 < len(re.Rune); i += 2 {
			runes += int(max(0, min(re.Rune[i+1], lastCase)-max(re.Rune[i], firstCase)+1))
		}
		n += classWeight * runes / (lastCase - firstCase + 1)
	}
	for _, sub := range re.Sub {
		n += count(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}
