// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// NumberError says why a query has not one number. Its texts are for the query's
// author, and name only series that the query selects.
type NumberError struct {
	reason   string
	answered bool
	nan      bool
	err      error
}

// Error implements error.
func (e *NumberError) Error() string { return e.err.Error() }

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *NumberError) Unwrap() error { return e.err }

// Public returns the text for the query's author.
func (e *NumberError) Public() string { return excerpt.Of(e.err.Error(), maxQuoted) }

// Reason returns the kind of the error as a metric's label: timeout, bad_query,
// limited, backend_error, no_series, several_series, no_number or incomplete.
func (e *NumberError) Reason() string { return e.reason }

// Answered reports whether the query was evaluated. It may have a number the next time.
func (e *NumberError) Answered() bool { return e.answered }

// IsNaN reports whether the result is NaN: there are series, and their quotient may be 0/0.
func (e *NumberError) IsNaN() bool { return e.nan }

// maxQuoted bounds a query's error in a status, in bytes.
const maxQuoted = 400

// Number evaluates a query to one finite number. The error is a *NumberError.
func (e *Engine) Number(ctx context.Context, q Query, at time.Time) (series.Sample, error) {
	v, notes, err := e.Instant(ctx, q, at)
	if err != nil {
		return series.Sample{}, numberError(err)
	}
	v, absent := Complete(v, notes)
	no := func(reason, format string, args ...any) (series.Sample, error) {
		return series.Sample{}, &NumberError{reason: reason, answered: true, err: fmt.Errorf(format, args...)}
	}
	if absent != nil {
		return no("incomplete", "%w", absent)
	}
	var x float64
	switch v := v.(type) {
	case promql.Scalar:
		x = v.V
	case promql.Vector:
		switch {
		case len(v) == 0:
			return no("no_series", "the query returns nothing: no series matches")
		case len(v) > 1:
			return no("several_series", "the query returns several series, such as %s: aggregate them to one", excerpt.Of(v[0].Metric.String(), maxQuoted/2))
		case v[0].H != nil:
			return no("no_number", "the query returns a histogram: select a quantile, a sum or a count of it")
		}
		x = v[0].F
	default:
		return no("no_number", "the query returns a %s: it must return one number", v.Type())
	}
	switch {
	case math.IsNaN(x):
		return series.Sample{}, &NumberError{reason: "no_number", answered: true, nan: true, err: errNaN}
	case math.IsInf(x, 0):
		return no("no_number", "the query returns %v", x)
	}
	return series.Sample{At: at, Value: x}, nil
}

var errNaN = errors.New("the query returns NaN")

// numberError converts an error of Instant.
func numberError(err error) *NumberError {
	if _, ok := errors.AsType[*SyntaxError](err); ok {
		return &NumberError{reason: "bad_query", answered: true, err: err}
	}
	switch limitOf(err) {
	case "":
	case LimitTime, LimitSlots:
		return &NumberError{reason: "timeout", err: err}
	default:
		return &NumberError{reason: "limited", answered: true, err: err}
	}
	var canceled promql.ErrQueryCanceled
	if errors.As(err, &canceled) {
		return &NumberError{reason: "timeout", err: err}
	}
	if _, ok := errors.AsType[*StorageError](err); ok || errors.Is(err, errPanicked) {
		return &NumberError{reason: "backend_error", err: errPanicked}
	}
	return &NumberError{reason: "bad_query", answered: true, err: err}
}
