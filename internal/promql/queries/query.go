// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The rhythm of a query.
const (
	// maxPause bounds the pause after consecutive failures, which is the query's
	// interval, doubled with each failure. jitter varies it, so that queries that failed
	// together are not retried together.
	maxPause = 30 * time.Second
	jitter   = 0.2
	// followedLoad bounds the time that a query takes whose interval is shorter than
	// Every: the pause after an evaluation is so many times as long as the evaluation.
	followedLoad = 3
	// maxWait is the wait for a slot after which a query's author is told.
	maxWait = 30 * time.Second
	// maxLogged bounds the texts of the log, in bytes.
	maxLogged = 512
)

// publicError is an error of a query with a text that its author may see.
type publicError interface {
	error
	Public() string // contains no data except what the query selects
	Reason() string // a metric's label
	Answered() bool // the backend evaluated the query
}

// ownError is an error that is not the backend's. Its text and reason are public.
type ownError struct{ text, reason string }

// errWaits is the error of a query that waits for a slot. It keeps its place.
var errWaits = &ownError{"the query has waited for 30 s: other queries, of its namespace or of all, take all the time", "wait"}

// Error implements error.
func (e *ownError) Error() string { return e.text }

// Public implements publicError.
func (e *ownError) Public() string { return e.text }

// Reason implements publicError.
func (e *ownError) Reason() string { return e.reason }

// Answered implements publicError: the backend does not fail.
func (e *ownError) Answered() bool { return true }

// query is one query and its newest answer. Scheduler.mu guards the fields below it.
type query struct {
	key     Key
	read    func(context.Context) (series.Sample, error) // nil: PromQL
	retimed chan struct{}                                // the interval has changed

	askers  map[string][]asker // by namespace; the lists are replaced, never changed
	request fair.Request       // of a slot
	every   time.Duration      // the shortest interval of the askers
	cancel  context.CancelFunc // nil: not started

	waiting context.CancelFunc // ends the wait for a slot; nil: it does not wait
	round   int                // counts the waits

	sample     series.Sample
	noRequests bool      // the sample is of a quotient of 0 by 0
	evaluated  time.Time // of the sample; zero: none
	err        error     // of the last attempt
	failures   int       // consecutive failures without an answer of the backend
}

func newQuery(key Key, read func(context.Context) (series.Sample, error)) *query {
	return &query{key: key, read: read, retimed: make(chan struct{}, 1), askers: map[string][]asker{}}
}

// settle sets what follows from the askers. A query that waits for a slot of another
// kind or payer waits anew. Scheduler.mu is held.
func (q *query) settle() {
	request, first := fair.Request{}, ""
	var every time.Duration
	for namespace, askers := range q.askers {
		for _, a := range askers {
			switch {
			case first == "", a.signal && !request.Signal, a.signal == request.Signal && namespace < first:
				request, first = fair.Request{Payer: fair.Namespace(namespace), Signal: a.signal}, namespace
			}
			if every == 0 || a.every < every {
				every = a.every
			}
		}
	}
	if (q.request.Payer != request.Payer || q.request.Signal != request.Signal) && q.waiting != nil {
		q.waiting()
	}
	if q.every != every {
		select {
		case q.retimed <- struct{}{}:
		default:
		}
	}
	q.request, q.every = request, every
}

// problem returns why there is no newer answer, for the query's author. Scheduler.mu is
// held.
func (q *query) problem() string {
	if q.err == nil {
		return ""
	}
	if q.read != nil {
		return q.err.Error()
	}
	if f, ok := errors.AsType[publicError](q.err); ok {
		text := f.Public()
		switch {
		case f.Reason() == "no_series" && !q.evaluated.IsZero():
			text += "; it is stale: the last value is of " + q.evaluated.UTC().Format(time.DateTime) + " UTC"
		case isNaN(q.err):
			text += ", and this is not 0/0 without requests: a series is NaN, or the quotient is within a subquery"
		}
		return text
	}
	return "the query failed; the controller's log has the details"
}

// isNaN reports whether an error is that the result is NaN.
func isNaN(err error) bool {
	e, ok := errors.AsType[interface {
		error
		IsNaN() bool
	}](err)
	return ok && e.IsNaN()
}

// evaluation is how one evaluation went.
type evaluation struct {
	sample       series.Sample
	noRequests   bool // the sample is of a quotient of 0 by 0
	err          error
	waited, took time.Duration
	failures     int     // consecutive ones, this one included
	jitter       float64 // of the pause after failures
}

// run evaluates a query until ctx is done.
func (s *Scheduler) run(ctx context.Context, q *query) {
	began := time.Now()
	for {
		evaluating, yield := context.WithCancel(ctx)
		release, err := s.acquire(ctx, q, yield)
		if err != nil {
			yield()
			return
		}
		sent := time.Now()
		e := evaluation{waited: sent.Sub(began), jitter: 1 - jitter + 2*jitter*rand.Float64()}
		e.sample, e.noRequests, e.err = s.evaluate(evaluating, q)
		e.took = time.Since(sent)
		release()
		yielded := e.err != nil && evaluating.Err() != nil
		yield()
		if ctx.Err() != nil {
			return
		}
		if yielded {
			continue // it waits for another slot
		}
		s.store(q, &e)
		if !s.pause(ctx, q, &e) {
			return
		}
		began = time.Now()
	}
}

// acquire waits for a slot, in one queue and without a time-out. The error is that of ctx.
// yield ends an evaluation that is too slow for its slot.
func (s *Scheduler) acquire(ctx context.Context, q *query, yield func()) (release func(), err error) {
	if q.read != nil {
		return func() {}, nil
	}
	s.mu.Lock()
	q.round++
	round := q.round
	s.mu.Unlock()
	late := time.AfterFunc(maxWait, func() { s.storeLate(q, round) })
	defer late.Stop()
	for {
		s.mu.Lock()
		request := q.request
		waiting, cancel := context.WithCancel(ctx)
		q.waiting = cancel
		s.mu.Unlock()
		request.Yield = yield
		release, err = s.deps.Slots.Acquire(waiting, request)
		cancel()
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	s.mu.Lock()
	q.waiting = nil
	s.mu.Unlock()
	return release, err
}

// evaluate evaluates a query once. If it is NaN, it is evaluated again with each quotient of 0
// by 0 as 0: noRequests is true if that is a number.
func (s *Scheduler) evaluate(ctx context.Context, q *query) (v series.Sample, noRequests bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	if q.read != nil {
		v, err = q.read(ctx)
	} else {
		v, err = s.deps.Query(ctx, q.key.Scope, q.key.PromQL)
	}
	if isNaN(err) {
		if promql, ok := WithoutRequests(q.key.PromQL); ok {
			if zero, bad := s.deps.Query(ctx, q.key.Scope, promql); bad == nil {
				v, noRequests, err = zero, true, nil
			}
		}
	}
	if err == nil && (math.IsNaN(v.Value) || math.IsInf(v.Value, 0)) {
		err = &ownError{fmt.Sprintf("the value is %v, not a number", v.Value), "no_number"}
	}
	return v, noRequests && err == nil, err
}

// store stores the result of an evaluation, logs a change between success and failure,
// and tells the owners. Nothing is stored if the query was removed meanwhile.
func (s *Scheduler) store(q *query, e *evaluation) {
	s.mu.Lock()
	if s.queries[q.key] != q {
		s.mu.Unlock()
		return
	}
	before := q.err
	if q.err = e.err; e.err == nil {
		q.sample, q.noRequests, q.evaluated = e.sample, e.noRequests, time.Now()
	}
	if f, ok := errors.AsType[publicError](e.err); e.err == nil || ok && f.Answered() {
		q.failures = 0
	} else {
		q.failures++
	}
	e.failures = q.failures
	if q.request.Signal {
		s.meters.observe(q.request.Payer.String(), e)
	}
	s.tell(q, before)
}

// storeLate stores that a query waits for a slot, if it still does.
func (s *Scheduler) storeLate(q *query, round int) {
	s.mu.Lock()
	if s.queries[q.key] != q || q.waiting == nil || q.round != round {
		s.mu.Unlock()
		return
	}
	before := q.err
	q.err = errWaits
	s.tell(q, before)
}

// tell logs a change between success and failure, and tells the owners. s.mu is held; it
// is not any more when tell returns.
func (s *Scheduler) tell(q *query, before error) {
	err, payer := q.err, q.request.Payer
	var changed []func()
	for _, askers := range q.askers {
		for _, a := range askers {
			if a.changed != nil {
				changed = append(changed, a.changed)
			}
		}
	}
	s.mu.Unlock()
	switch promql := excerpt.Of(q.key.PromQL, maxLogged); {
	case promql == "":
	case err != nil && before == nil:
		s.deps.Log.Warn("query failed", "namespace", payer.String(), "promql", promql, "err", excerpt.Of(err.Error(), maxLogged))
	case err == nil && before != nil:
		s.deps.Log.Info("query answered again", "namespace", payer.String(), "promql", promql)
	}
	for _, f := range changed {
		f()
	}
}

// pause waits until the next evaluation is due. It reports false if ctx is done first.
func (s *Scheduler) pause(ctx context.Context, q *query, e *evaluation) bool {
	ended := time.Now()
	for {
		s.mu.Lock()
		every := q.every
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return false
		case <-q.retimed:
		case <-time.After(pauseOf(every, q.read != nil, e) - time.Since(ended)):
			return true
		}
	}
}

// pauseOf returns the time from the end of an evaluation to the next one. An answered
// query runs once per interval, and uses its slot for at most half of the time. A failed
// one backs off, unless it is read without PromQL, which no backend has to recover from.
func pauseOf(every time.Duration, isRead bool, e *evaluation) time.Duration {
	since, regular := e.waited+e.took, max(every, Every)
	switch {
	case e.failures > 0 && !isRead:
		d := min(regular<<min(e.failures-1, 10), max(maxPause, regular))
		return time.Duration(e.jitter * float64(d))
	case every < Every:
		return min(max(every-since, followedLoad*e.took), max(Every-since, e.took))
	}
	return max(every-since, e.took)
}

// backsOff reports whether the query pauses for longer than its interval. Scheduler.mu is
// held.
func (q *query) backsOff() bool { return q.failures > 1 }

// isSignalOf reports whether a GPUAutoscaler of the namespace has the query. Scheduler.mu
// is held.
func (q *query) isSignalOf(namespace string) bool {
	for _, a := range q.askers[namespace] {
		if a.signal {
			return true
		}
	}
	return false
}
