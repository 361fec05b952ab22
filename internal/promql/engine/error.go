// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/promql"
)

// errPanicked is the error of a query on which the engine or the storage panicked.
var errPanicked = errors.New("the query could not be evaluated because of an internal error; the controller's log has the details")

// Limit names what a query exceeds, as a label of metrics.
type Limit string

// The limits.
const (
	LimitLength  Limit = "length"  // of the text, its depth or its regular expressions
	LimitSteps   Limit = "steps"   // of a range or of a subquery
	LimitSeries  Limit = "series"  // that the selectors read
	LimitMemory  Limit = "memory"  // of labels, estimated
	LimitSamples Limit = "samples" // held at the same time
	LimitSlots   Limit = "slots"   // too many queries wait
	LimitTime    Limit = "time"
)

// LimitError says which limit a query exceeds. Its text is for the query's author.
type LimitError struct {
	Limit  Limit
	text   string
	weight error // a *weight.Error, of a query that is too dear by its text; or nil
}

// Error implements error.
func (e *LimitError) Error() string { return e.text }

// Unwrap returns the *weight.Error of a query that was refused before it ran; nil: another limit was met.
func (e *LimitError) Unwrap() error { return e.weight }

// tooHeavy returns the error of a query's weight; nil if there is none.
func tooHeavy(l Limit, err error) error {
	if err == nil {
		return nil
	}
	return &LimitError{Limit: l, text: err.Error(), weight: err}
}

func exceeds(l Limit, format string, args ...any) error {
	return &LimitError{Limit: l, text: fmt.Sprintf(format, args...)}
}

// SyntaxError is the error of a query that is not valid PromQL. Its text is for the
// query's author.
type SyntaxError struct{ err error }

// Error implements error.
func (e *SyntaxError) Error() string { return e.err.Error() }

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *SyntaxError) Unwrap() error { return e.err }

// StorageError is the error of a storage that cannot read its series. Its text is for
// the operator.
type StorageError struct{ Err error }

// Error implements error.
func (e *StorageError) Error() string { return e.Err.Error() }

// Unwrap supports errors.Is and errors.As.
func (e *StorageError) Unwrap() error { return e.Err }

// unwrapReading returns what ended a query while it read series, which the engine wraps:
// a LimitError, a timeout or a cancellation.
func unwrapReading(err error) error {
	if l, ok := errors.AsType[*LimitError](err); ok {
		return l
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return promql.ErrQueryTimeout("reading series")
	case errors.Is(err, context.Canceled):
		return promql.ErrQueryCanceled("reading series")
	}
	return err
}

// limitOf returns the limit that an error is about; "" for others.
func limitOf(err error) Limit {
	if l, ok := errors.AsType[*LimitError](err); ok {
		return l.Limit
	}
	var (
		late promql.ErrQueryTimeout
		many promql.ErrTooManySamples
	)
	switch {
	case errors.As(err, &late):
		return LimitTime
	case errors.As(err, &many):
		return LimitSamples
	}
	return ""
}
