// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// Error is the reason why a query has no value. Error is for the operator, who owns
// the account of the backend. Public is for the query's author.
type Error struct {
	reason, public string
	answered, nan  bool
	err            error
}

// Error returns the full text.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.err }

// Public returns the text for the query's author, who may not be allowed to read all
// series of the backend or to see its address. It contains no response body, no
// address and no storage error.
func (e *Error) Public() string { return e.public }

// Reason returns the kind of the error as a metric's label: timeout, unreachable,
// bad_query, backend_error, bad_answer, no_series, several_series, no_number or stale.
func (e *Error) Reason() string { return e.reason }

// Answered reports whether the backend evaluated the query. The query may then have a
// value at the next evaluation.
func (e *Error) Answered() bool { return e.answered }

// IsNaN reports whether the result is NaN: there are series, and their quotient may be 0/0.
func (e *Error) IsNaN() bool { return e.nan }

// newValueError returns an error about the value of an evaluated query. Its text names
// only series that the query selects.
func newValueError(reason, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{reason: reason, public: err.Error(), answered: true, err: err}
}

// errAnswerTooLong means that an answer exceeds the limit.
type errAnswerTooLong struct{ maxBytes int64 }

// Error implements error.
func (e *errAnswerTooLong) Error() string {
	return fmt.Sprintf("the answer is longer than %d bytes", e.maxBytes)
}

const logHint = "; the controller's log has the details"

// IsTooMuch reports whether an error says that a query's result is too large, or takes
// too long: a shorter range may succeed.
func IsTooMuch(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return false
	}
	_, long := errors.AsType[*errAnswerTooLong](err)
	return long || e.reason == "timeout" || strings.Contains(e.public, "too many samples")
}

// newRequestError converts the error of a query that the backend did not answer.
func newRequestError(err error) error {
	if long, ok := errors.AsType[*errAnswerTooLong](err); ok {
		return &Error{reason: "bad_answer", public: long.Error(), err: long}
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		return newAPIError(e)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the address holds the whole query
	}
	return &Error{reason: "unreachable", public: "the PromQL backend cannot be reached" + logHint, err: err}
}

// newAPIError converts an error of the backend's API.
func newAPIError(e *v1.Error) error {
	switch e.Type {
	case v1.ErrBadData:
		return &Error{reason: "bad_query", public: "the PromQL backend refuses the query: " + excerpt.Of(e.Msg, maxQuoted), err: errors.New(e.Msg)}
	case v1.ErrBadResponse: // its message quotes the body
		const text = "the answer is not that of a PromQL backend"
		return &Error{reason: "bad_answer", public: text, err: fmt.Errorf("%s: %s", text, e.Msg)}
	case v1.ErrTimeout, v1.ErrCanceled:
		return newAbortedError(e.Msg)
	case v1.ErrClient, v1.ErrServer:
		if isTimeout(e.Detail) {
			return newAbortedError(e.Msg)
		}
		if statusOnly.MatchString(e.Msg) {
			return &Error{reason: "backend_error", public: "the PromQL backend answers with a " + e.Msg, err: errors.New(e.Msg)}
		}
	case v1.ErrExec:
		for _, text := range evaluationErrors {
			if strings.Contains(e.Msg, text) {
				return &Error{reason: "bad_query", public: "the PromQL backend cannot evaluate the query: " + text, err: errors.New(e.Msg)}
			}
		}
	}
	return &Error{reason: "backend_error", public: "the PromQL backend cannot evaluate the query" + logHint, err: errors.New(e.Msg)}
}

func newAbortedError(text string) error {
	return &Error{reason: "timeout", public: "the PromQL backend aborted the query, because it takes too long", err: errors.New(text)}
}

// isTimeout reports whether a response body says that the query took too long.
// Prometheus sends it with the status 503, whose bodies the API client does not read.
func isTimeout(body string) bool {
	var answer struct {
		Type v1.ErrorType `json:"errorType"`
	}
	return json.Unmarshal([]byte(body), &answer) == nil && answer.Type == v1.ErrTimeout
}

// statusOnly matches messages that the API client generates from an HTTP status. Other
// messages are from a response body.
var statusOnly = regexp.MustCompile(`^(client|server) error: \d{3}$`)

// evaluationErrors are Prometheus's own evaluation errors, without the series that they
// name. Other evaluation errors are from the storage.
var evaluationErrors = []string{
	"many-to-many matching not allowed: matching labels must be unique on one side",
	"multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)",
	"multiple matches for labels: grouping labels must ensure unique matches",
	"vector cannot contain metrics with the same labelset",
	"query processing would load too many samples into memory in query execution",
	"invalid destination label name",
}

// newTimeoutError returns the error of a query that timed out or was cancelled.
func newTimeoutError(ctx context.Context, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &Error{reason: "timeout", public: text, err: fmt.Errorf("%s: %w", text, ctx.Err())}
}
