// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The bounds of query evaluation.
const (
	// queryEvery is the minimum time between two evaluations of one query. Backends
	// rarely scrape more often.
	queryEvery = 2 * time.Second
	// queryPause bounds the pause after consecutive failures, which is queryEvery,
	// doubled with each failure. queryJitter varies it, so that queries that failed
	// together are not retried together.
	queryPause  = 30 * time.Second
	queryJitter = 0.2
	// queryWait is the wait for a slot after which a query's author is told.
	queryWait = 30 * time.Second
	// maxQueries is the default limit of different queries per namespace.
	maxQueries = 100
)

var (
	// errNoBackend is the error of all queries if no backend is configured.
	errNoBackend = errors.New("this replica evaluates no PromQL: start the controller with --prometheus-url, or with the role query")
	// errNoLimit is the error of all queries if Deps.LimitQuery is nil.
	errNoLimit = errors.New("queries cannot be limited to their namespace, so none runs")
)

// queryError is an error of a query with a text that its author may see.
type queryError interface {
	error
	Public() string // contains no data except what the query selects
	Reason() string // a metric's label
	Answered() bool // the backend evaluated the query
}

// errQueryWaits is the error of a query that waits for a slot. It keeps its place.
const errQueryWaits = waitError("the query has waited for 30 s: other queries, of its namespace or of all, take all the time")

type waitError string

// Error implements error.
func (e waitError) Error() string { return string(e) }

// Public implements queryError.
func (e waitError) Public() string { return string(e) }

// Reason implements queryError.
func (e waitError) Reason() string { return "wait" }

// Answered implements queryError: the backend does not fail.
func (e waitError) Answered() bool { return true }

// queryKey identifies one query to the backend. Queries of trusted namespaces give the
// same result in each of them; they have no scope and are shared.
type queryKey struct {
	scope  string // the namespace that the query is limited to
	promql string // as it is sent
}

// signalQueries runs the queries of all autoscalers and keeps their newest answers. Equal
// queries run once, and a failing query does not affect the others.
type signalQueries struct {
	c               *Controller
	every           time.Duration
	maxPerNamespace int // different queries of one namespace
	slots           *queries.Slots
	meter           *queryMeters

	mu        sync.Mutex
	running   map[queryKey]*queryState
	overLimit map[namespacedQuery]bool // queries beyond the limit of their namespace
}

// queryState is one running query and its result. queries.mu guards its fields.
type queryState struct {
	cancel    context.CancelFunc
	namespace string      // whose slots it uses
	askers    []*workload // the workloads with this query
	sample    series.Sample
	ok        bool  // sample is of the last success
	err       error // of the last attempt
	failures  int   // consecutive failures without an answer of the backend
}

func newQueries(c *Controller) *signalQueries {
	most := c.cfg.QueriesPerNamespace
	if most <= 0 {
		most = maxQueries
	}
	return &signalQueries{
		c: c, every: max(queryEvery, c.cfg.Tick), maxPerNamespace: most, slots: c.deps.Slots,
		running: map[queryKey]*queryState{}, overLimit: map[namespacedQuery]bool{}, meter: newQueryMeters(),
	}
}

// run evaluates one query until ctx is done.
func (q *signalQueries) run(ctx context.Context, key queryKey, x *queryState) {
	for {
		began := time.Now()
		q.mu.Lock()
		namespace := x.namespace
		q.mu.Unlock()
		late := time.AfterFunc(queryWait, func() { q.storeAnswer(key, x, series.Sample{}, errQueryWaits) })
		release, err := q.slots.Acquire(ctx, queries.Request{Payer: namespace, Signal: true})
		late.Stop()
		if err != nil {
			return
		}
		sent := time.Now()
		s, err := q.c.deps.Query(ctx, key.scope, key.promql)
		took := time.Since(sent)
		release()
		if ctx.Err() != nil {
			return
		}
		failures := q.storeAnswer(key, x, s, err)
		q.recordEvaluation(key, x, sent.Sub(began), took, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(q.nextDelay(time.Since(began), took, failures)):
		}
	}
}

// recordEvaluation counts one evaluation, unless the query was removed meanwhile
// together with the series of its namespace.
func (q *signalQueries) recordEvaluation(key queryKey, x *queryState, waited, took time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.running[key] == x {
		q.meter.observe(x.namespace, waited, took, err)
	}
}

// nextDelay returns the time until the next evaluation of a query that took this long
// and was due since ago. An answered query runs once per q.every, and uses its slot
// for at most half of the time. A failed query backs off.
func (q *signalQueries) nextDelay(since, took time.Duration, failures int) time.Duration {
	if failures == 0 {
		return max(q.every-since, took)
	}
	d := min(q.every<<min(failures-1, 10), max(queryPause, q.every))
	return time.Duration(float64(d) * (1 - queryJitter + 2*queryJitter*rand.Float64()))
}

// storeAnswer stores the result of an evaluation, logs a change between success and
// failure, and requests a pass of the workloads with this query. It returns the
// number of consecutive failures of the backend.
func (q *signalQueries) storeAnswer(key queryKey, x *queryState, s series.Sample, err error) (failures int) {
	q.mu.Lock()
	before := x.err
	if x.err = err; err == nil {
		x.sample, x.ok = s, true
	}
	if f, ok := errors.AsType[queryError](err); err == nil || ok && f.Answered() {
		x.failures = 0
	} else {
		x.failures++
	}
	failures = x.failures
	askers := x.askers // replaced, never changed
	namespace := x.namespace
	q.mu.Unlock()
	switch {
	case err != nil && before == nil:
		q.c.deps.Log.Warn("query failed", "namespace", namespace, "promql", excerpt.Of(key.promql, maxMessage), "err", excerpt.Of(err.Error(), maxMessage))
	case err == nil && before != nil:
		q.c.deps.Log.Info("query answered again", "namespace", namespace, "promql", excerpt.Of(key.promql, maxMessage))
	}
	for _, w := range askers {
		w.requestPass()
	}
	return failures
}

// newestAnswer returns the newest answer to a query of a namespace. problem is the
// reason, for the query's author, why there is no newer one.
func (q *signalQueries) newestAnswer(namespace string, key queryKey) (r scale.Reading, problem string) {
	if q.c.deps.Query == nil {
		return r, errNoBackend.Error()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.overLimit[namespacedQuery{namespace, key}] {
		return r, q.overLimitMessage(namespace)
	}
	x := q.running[key]
	if x == nil {
		return r, "" // not evaluated yet
	}
	return scale.Reading{Value: x.sample.Value, At: x.sample.At, OK: x.ok}, publicError(x.err)
}

// publicError returns the text of a query's error that its author may see.
func publicError(err error) string {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[queryError](err); ok {
		return f.Public()
	}
	return "the query failed; the controller's log has the details"
}

// totals returns the readings of the plan's queries, in the order of its signals; nil
// if it has none. problem is the reason why one of them has no new answer.
func (q *signalQueries) totals(key types.NamespacedName, p *plan) (totals []scale.Reading, problem string) {
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Query {
			continue
		}
		if totals == nil {
			totals = make([]scale.Reading, len(p.Sources))
		}
		r, why := q.newestAnswer(key.Namespace, p.queries[i])
		totals[i] = r
		if why != "" {
			problem = "query " + p.Policy.Signals[i].Name + ": " + why
			if q.c.ownGateway(&p.Sources[i]) {
				if gateway := q.c.gatewayProblem(key); gateway != "" {
					problem = p.Policy.Signals[i].Name + ": " + gateway
				}
			}
		}
	}
	return totals, problem
}

// backsOff reports whether the query waits longer than its interval. q.mu is held.
func (x *queryState) backsOff() bool { return x.failures > 1 }

// namespaces returns the sorted namespaces with this query. q.mu is held.
func (x *queryState) namespaces() []string {
	var out []string
	for _, w := range x.askers {
		out = append(out, w.key.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
