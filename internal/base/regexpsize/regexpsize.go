// SPDX-License-Identifier: Apache-2.0

// Package regexpsize estimates the compiled size of regular expressions, without
// compiling them. 4 KiB of nested repetitions such as (a{31}){31} compile to a quarter
// of a million instructions, which takes seconds and hundreds of MiB.
package regexpsize

import "regexp/syntax"

// Instructions estimates the number of instructions of a regular expression. It is 0
// for text that is not one.
func Instructions(pattern string) int {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return 0
	}
	return count(re)
}

// count cannot overflow, because the parser limits nested repetitions to 1000.
func count(re *syntax.Regexp) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		n += count(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min+1, re.Max)
	}
	return n
}
