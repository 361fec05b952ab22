// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
)

// How often and how many queries are evaluated.
const (
	// queryEvery is the least time between two evaluations of one query: what the
	// backend itself has scraped is seldom newer.
	queryEvery = 2 * time.Second
	// queryPause bounds the pause after failures in a row: queryEvery, doubled
	// with each, varied by queryJitter so that queries that failed together do
	// not come back together.
	queryPause  = 30 * time.Second
	queryJitter = 0.2
	// querySlots is how many queries the backend evaluates at a time;
	// queryShare is how many of them may be of one namespace.
	querySlots = 8
	queryShare = querySlots / 2
	// maxQueries is the default for the different queries of one namespace.
	maxQueries = 100
)

var (
	// errNoBackend is why a query has no answer where nobody is there to ask.
	errNoBackend = errors.New("no PromQL backend is known: start the controller with --prometheus-url")
	// errNoLimit is why no query runs in a controller that was given a backend and no limit.
	errNoLimit = errors.New("queries are not limited to namespaces, so none runs")
)

// failure is an error of a query that knows what its author may read of it.
type failure interface {
	error
	Public() string // names no data but what the query selects
	Reason() string // a metric's label
	Answered() bool // the backend evaluated the query
}

// queryKey is one query to the backend. The queries of trusted namespaces, which
// select the same whoever asks, have no scope and are shared.
type queryKey struct {
	scope  string // the namespace that the query is limited to
	promql string // as it is sent
}

// queries keeps the newest answer to each query that autoscalers make. A query
// is asked once, however many make it, and its failure is its own.
type queries struct {
	c     *Controller
	every time.Duration
	most  int // different queries of one namespace
	turns *turns
	meter *queryMeters

	mu      sync.Mutex
	asked   map[queryKey]*question
	refused map[refusal]bool // what exceeds the limit of a namespace
}

// question is one query and what it came to. queries.mu guards what changes.
type question struct {
	cancel    context.CancelFunc
	namespace string      // whose turns it takes
	askers    []*workload // who decides by it
	sample    series.Sample
	ok        bool  // sample is of the last success
	err       error // of the last attempt
	failures  int   // in a row in which the backend did not answer
}

func newQueries(c *Controller) *queries {
	most := c.cfg.QueriesPerNamespace
	if most <= 0 {
		most = maxQueries
	}
	return &queries{
		c: c, every: max(queryEvery, c.cfg.Tick), most: most, turns: newTurns(querySlots, queryShare),
		asked: map[queryKey]*question{}, refused: map[refusal]bool{}, meter: newQueryMeters(),
	}
}

// run asks one query until ctx is done.
func (q *queries) run(ctx context.Context, key queryKey, x *question) {
	for {
		began := time.Now()
		q.mu.Lock()
		namespace := x.namespace
		q.mu.Unlock()
		if q.turns.take(ctx, namespace) != nil {
			return
		}
		sent := time.Now()
		s, err := q.c.deps.Query(ctx, key.promql)
		took := time.Since(sent)
		q.turns.release(namespace)
		if ctx.Err() != nil {
			return
		}
		failures := q.keep(key, x, s, err)
		q.measure(key, x, sent.Sub(began), took, err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(q.pause(time.Since(began), took, failures)):
		}
	}
}

// measure counts one evaluation, unless nobody asks the query any more: its
// namespace is forgotten then.
func (q *queries) measure(key queryKey, x *question, waited, took time.Duration, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.asked[key] == x {
		q.meter.observe(x.namespace, waited, took, err)
	}
}

// pause is how long a query rests that was evaluated in a time of took, since
// when it was due. One that is answered is due once in q.every, and occupies its
// slot for no more than half of the time. One that fails backs off.
func (q *queries) pause(since, took time.Duration, failures int) time.Duration {
	if failures == 0 {
		return max(q.every-since, took)
	}
	d := min(q.every<<min(failures-1, 10), max(queryPause, q.every))
	return time.Duration(float64(d) * (1 - queryJitter + 2*queryJitter*rand.Float64()))
}

// keep takes an answer, tells of a change for better or worse, and has those
// decide who asked. It returns how often in a row the backend did not answer.
func (q *queries) keep(key queryKey, x *question, s series.Sample, err error) (failures int) {
	q.mu.Lock()
	before := x.err
	if x.err = err; err == nil {
		x.sample, x.ok = s, true
	}
	if f, ok := errors.AsType[failure](err); err == nil || ok && f.Answered() {
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
		q.c.deps.Log.Warn("query failed", "namespace", namespace, "promql", clip(key.promql, maxMessage), "err", clip(err.Error(), maxMessage))
	case err == nil && before != nil:
		q.c.deps.Log.Info("query answered again", "namespace", namespace, "promql", clip(key.promql, maxMessage))
	}
	for _, w := range askers {
		w.poke()
	}
	return failures
}

// answer is the newest answer to a query of a namespace; why says, for the
// query's author, why there is no newer one.
func (q *queries) answer(namespace string, key queryKey) (r scale.Reading, why string) {
	if q.c.deps.Query == nil {
		return r, errNoBackend.Error()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refused[refusal{namespace, key}] {
		return r, q.tooMany(namespace)
	}
	x := q.asked[key]
	if x == nil {
		return r, "" // it is about to be asked
	}
	return scale.Reading{Value: x.sample.Value, At: x.sample.At, OK: x.ok}, public(x.err)
}

// public is what a query's author may read of its error.
func public(err error) string {
	if err == nil {
		return ""
	}
	if f, ok := errors.AsType[failure](err); ok {
		return f.Public()
	}
	return "it failed; the controller's log has the details"
}

// totals are the readings of the plan's queries, in the order of its signals,
// nil if it has none. failed is why one of them has no new answer.
func (q *queries) totals(namespace string, p *plan) (totals []scale.Reading, failed string) {
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Query {
			continue
		}
		if totals == nil {
			totals = make([]scale.Reading, len(p.Sources))
		}
		r, why := q.answer(namespace, p.queries[i])
		totals[i] = r
		if why != "" {
			failed = "query " + p.Policy.Signals[i].Name + ": " + why
		}
	}
	return totals, failed
}

// backsOff reports whether the query waits longer than its cadence. q.mu is held.
func (x *question) backsOff() bool { return x.failures > 1 }

// namespaces are the namespaces that ask, in order. q.mu is held.
func (x *question) namespaces() []string {
	var out []string
	for _, w := range x.askers {
		out = append(out, w.key.Namespace)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
