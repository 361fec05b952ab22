// SPDX-License-Identifier: Apache-2.0

// Package weight bounds what the programs of tenants cost: formulas, PromQL, regular expressions, label selectors and
// cron expressions. Each is weighed where it enters, before it is compiled, and refused above its weight.
package weight

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// Kind is a kind of programs.
type Kind uint8

// The kinds.
const (
	Formula Kind = iota
	Query
	Regexp
	Schedule
	Selector
	numKinds
)

// String returns the kind as a label's value.
func (k Kind) String() string {
	return [...]string{"formula", "query", "regexp", "schedule", "selector"}[k]
}

// The most that programs may have. A query's other bounds are those of its engine.
const (
	MostFormula    = 1024     // bytes of a formula
	MostSchedule   = 100      // bytes of a cron expression
	MostLabels     = 64       // labels and values of a selector
	MostLabelBytes = 8 << 10  // of them
	mostSelector   = 16 << 10 // bytes of a selector's text
)

// Error is that of a program above its weight. Its text is for the author.
type Error struct {
	Kind Kind
	text string
}

// Error implements error.
func (e *Error) Error() string { return e.text }

// Check returns an *Error if n is above most. has says what n is, such as "the query has %d bytes",
// and do what the author can do.
func Check(k Kind, has string, n, most int, do string) error {
	if n <= most {
		return nil
	}
	return &Error{k, fmt.Sprintf(has+"; at most %d are allowed: %s", n, most, do)}
}

// CheckRegexps is Check for the weight of a query's regular expressions.
func CheckRegexps(instructions int) error {
	return Check(Regexp, "the regular expressions of the query expand to %d instructions", instructions, MostInstructions, "use smaller repetitions and fewer groups")
}

// CheckSelector is Check for a selector with so many labels and values, of so many bytes.
func CheckSelector(values, bytes int) error {
	if err := Check(Selector, "the selector has %d labels and values", values, MostLabels, "select by one label that these objects have in common"); err != nil {
		return err
	}
	return Check(Selector, "the labels of the selector have %d bytes", bytes, MostLabelBytes, "use shorter ones")
}

// CheckSelectorText is Check for a selector that is not parsed yet.
func CheckSelectorText(text string) error {
	return Check(Selector, "the selector has %d bytes", len(text), mostSelector, "select by one label that these objects have in common")
}

// Counts are the refusals of each kind. nil counts nothing. It is safe for concurrent use.
type Counts struct{ n [numKinds]atomic.Uint64 }

// Note counts an error that is, or wraps, an *Error, and returns it.
func (c *Counts) Note(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && c != nil {
		c.n[e.Kind].Add(1)
	}
	return err
}

// Each calls f with the refusals of each kind.
func (c *Counts) Each(f func(kind string, n uint64)) {
	for k := range numKinds {
		f(k.String(), c.n[k].Load())
	}
}
