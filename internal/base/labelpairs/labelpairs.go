// SPDX-License-Identifier: Apache-2.0

// Package labelpairs keeps labels as one text, so that structs with labels can be compared.
package labelpairs

import (
	"iter"
	"strings"
)

// Pairs are labels in a form that can be compared: each name and each value is
// followed by the byte 0xff, which UTF-8 text does not have.
type Pairs string

// pairEnd ends a name or a value.
const pairEnd = "\xff"

// With returns the pairs with another one. Both texts are valid UTF-8.
func (p Pairs) With(name, value string) Pairs {
	return p + Pairs(name+pairEnd+value+pairEnd)
}

// All returns the names and values, in the order in which they were added.
func (p Pairs) All() iter.Seq2[string, string] {
	return func(yield func(name, value string) bool) {
		for rest := string(p); rest != ""; {
			var name, value string
			name, rest, _ = strings.Cut(rest, pairEnd)
			value, rest, _ = strings.Cut(rest, pairEnd)
			if !yield(name, value) {
				return
			}
		}
	}
}
