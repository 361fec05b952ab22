// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/series"
)

// queryEvery is the least time between two evaluations of one query: what the
// backend itself has scraped is seldom newer.
const queryEvery = 2 * time.Second

// errNoBackend is why a query has no answer where nobody is there to ask.
var errNoBackend = errors.New("no PromQL backend is known: start the controller with --prometheus-url")

// queries keeps the newest answer to each query that autoscalers make. A query
// is asked once, however many make it, and its failure is its own.
type queries struct {
	c     *Controller
	every time.Duration

	mu    sync.Mutex
	asked map[string]*question // by their PromQL
}

// question is one query and what it came to.
type question struct {
	cancel context.CancelFunc
	sample series.Sample // of the last success
	ok     bool          // there was one
	err    error         // of the last attempt
}

func newQueries(c *Controller) *queries {
	return &queries{c: c, every: max(queryEvery, c.cfg.Tick), asked: map[string]*question{}}
}

// follow asks what autoscalers ask from now on, and no more what they do not.
func (q *queries) follow(ctx context.Context) {
	if q.c.deps.Query == nil {
		return
	}
	wanted := map[string]bool{}
	q.c.mu.RLock()
	for _, w := range q.c.workloads {
		if p := w.plan.Load(); p != nil {
			for i := range p.Sources {
				if p.Sources[i].Kind == policy.Query {
					wanted[p.Sources[i].PromQL] = true
				}
			}
		}
	}
	q.c.mu.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	for promql, x := range q.asked {
		if !wanted[promql] {
			x.cancel()
			delete(q.asked, promql)
		}
	}
	for promql := range wanted {
		if q.asked[promql] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		x := &question{cancel: cancel}
		q.asked[promql] = x
		q.c.running.Go(func() {
			defer cancel()
			q.run(ctx, promql, x)
		})
	}
}

// run asks one query until ctx is done.
func (q *queries) run(ctx context.Context, promql string, x *question) {
	every := time.NewTicker(q.every)
	defer every.Stop()
	for {
		s, err := q.c.deps.Query(ctx, promql)
		if ctx.Err() != nil {
			return
		}
		q.keep(promql, x, s, err)
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// keep takes an answer, tells of a change for better or worse, and has those
// decide who asked.
func (q *queries) keep(promql string, x *question, s series.Sample, err error) {
	result := "answered"
	q.mu.Lock()
	before := x.err
	if x.err = err; err == nil {
		x.sample, x.ok = s, true
	} else {
		result = "failed"
	}
	q.mu.Unlock()
	q.c.meters.queries.WithLabelValues(result).Inc()
	switch {
	case err != nil && before == nil:
		q.c.deps.Log.Warn("query failed", "promql", promql, "err", err)
	case err == nil && before != nil:
		q.c.deps.Log.Info("query answered again", "promql", promql)
	}
	q.c.mu.RLock()
	defer q.c.mu.RUnlock()
	for _, w := range q.c.workloads {
		if p := w.plan.Load(); p != nil && p.asks(promql) {
			w.poke()
		}
	}
}

// answer is the newest answer to a query; err is why there is no newer one.
func (q *queries) answer(promql string) (r scale.Reading, err error) {
	if q.c.deps.Query == nil {
		return r, errNoBackend
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	x := q.asked[promql]
	if x == nil {
		return r, nil // it is about to be asked
	}
	return scale.Reading{Value: x.sample.Value, At: x.sample.At, OK: x.ok}, x.err
}

// totals are the readings of the plan's queries, in the order of its signals,
// nil if it has none. failed is why one of them has no new answer.
func (q *queries) totals(p *plan) (totals []scale.Reading, failed string) {
	for i := range p.Sources {
		if p.Sources[i].Kind != policy.Query {
			continue
		}
		if totals == nil {
			totals = make([]scale.Reading, len(p.Sources))
		}
		r, err := q.answer(p.Sources[i].PromQL)
		totals[i] = r
		if err != nil {
			failed = "query " + p.Policy.Signals[i].Name + ": " + err.Error()
		}
	}
	return totals, failed
}

// asks says whether one of the plan's signals is this query.
func (p *plan) asks(promql string) bool {
	for i := range p.Sources {
		if p.Sources[i].Kind == policy.Query && p.Sources[i].PromQL == promql {
			return true
		}
	}
	return false
}
