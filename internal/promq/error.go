// SPDX-License-Identifier: Apache-2.0

package promq

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
)

// Error is why a query has no value. Its text is for whoever owns the account of
// the backend. Public is for whoever wrote the query.
type Error struct {
	reason, public string
	answered       bool
	err            error
}

// Error is error's: all that is known.
func (e *Error) Error() string { return e.err.Error() }

// Unwrap is errors.Unwrap's.
func (e *Error) Unwrap() error { return e.err }

// Public is what may be shown to the query's author, who need not be allowed to
// read all series of the backend or to know its address: no body of an answer,
// no address, no error of the storage.
func (e *Error) Public() string { return e.public }

// Reason is the kind of the error as a metric's label: timeout, unreachable,
// bad_query, backend_error, bad_answer, no_series, several_series, no_number or stale.
func (e *Error) Reason() string { return e.reason }

// Answered reports whether the backend evaluated the query: it has no value now
// and may have one at the next evaluation.
func (e *Error) Answered() bool { return e.answered }

// answered is an error about the value of a query that was evaluated. Its text
// names only what the query itself selects.
func answered(reason, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	return &Error{reason: reason, public: err.Error(), answered: true, err: err}
}

// errTooLong is an answer that was not read to its end.
type errTooLong struct{ most int64 }

// Error is error's.
func (e *errTooLong) Error() string { return fmt.Sprintf("the answer is longer than %d bytes", e.most) }

const seeLog = "; the controller's log has the details"

// failed is the error of a query that the backend did not answer.
func failed(err error) error {
	if long, ok := errors.AsType[*errTooLong](err); ok {
		return &Error{reason: "bad_answer", public: long.Error(), err: long}
	}
	if e, ok := errors.AsType[*v1.Error](err); ok {
		return refused(e)
	}
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // the address holds the whole query
	}
	return &Error{reason: "unreachable", public: "the PromQL backend cannot be reached" + seeLog, err: err}
}

// refused is an error of the backend's API.
func refused(e *v1.Error) error {
	switch e.Type {
	case v1.ErrBadData:
		return &Error{reason: "bad_query", public: "the PromQL backend refuses the query: " + clip(e.Msg), err: errors.New(e.Msg)}
	case v1.ErrBadResponse: // its message quotes the body
		const text = "the answer is not a PromQL backend's"
		return &Error{reason: "bad_answer", public: text, err: fmt.Errorf("%s: %s", text, e.Msg)}
	case v1.ErrTimeout, v1.ErrCanceled:
		return &Error{reason: "timeout", public: "the PromQL backend gave up the query: it takes too long", err: errors.New(e.Msg)}
	case v1.ErrClient, v1.ErrServer:
		if statusOnly.MatchString(e.Msg) {
			return &Error{reason: "backend_error", public: "the PromQL backend answers with a " + e.Msg, err: errors.New(e.Msg)}
		}
	case v1.ErrExec:
		for _, text := range evaluation {
			if strings.Contains(e.Msg, text) {
				return &Error{reason: "bad_query", public: "the PromQL backend cannot evaluate the query: " + text, err: errors.New(e.Msg)}
			}
		}
	}
	return &Error{reason: "backend_error", public: "the PromQL backend cannot evaluate the query" + seeLog, err: errors.New(e.Msg)}
}

// statusOnly is the message that the API's client makes of an HTTP status. Others are from a body.
var statusOnly = regexp.MustCompile(`^(client|server) error: \d{3}$`)

// evaluation are Prometheus's own errors about what a query does, without the
// series that they name. Other errors of an evaluation are the storage's.
var evaluation = []string{
	"many-to-many matching not allowed: matching labels must be unique on one side",
	"multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)",
	"multiple matches for labels: grouping labels must ensure unique matches",
	"vector cannot contain metrics with the same labelset",
	"query processing would load too many samples into memory in query execution",
	"invalid destination label name",
}

// late is the error of a query whose time is over or that was given up.
func late(ctx context.Context, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	return &Error{reason: "timeout", public: text, err: fmt.Errorf("%s: %w", text, ctx.Err())}
}
