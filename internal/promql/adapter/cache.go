// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"math"
	"sync"
	"time"
)

// maxCached bounds the results that are kept.
const maxCached = 1024

// cache keeps the results of queries for a short time. Concurrent requests for one result
// share one query. The zero cache is empty.
type cache struct {
	mu      sync.Mutex
	results map[string]*result
}

// result is the result of a query. Its fields are set once done is closed.
type result struct {
	until   time.Time
	done    chan struct{}
	samples []Sample
	err     error

	mu      sync.Mutex
	byLabel map[valuesKey]map[string]Sample
}

// get returns the result of a query, which is at most maxAge old or still running. The
// query is not cancelled with the request that started it, because others wait for it: it
// has the time limit of the engine.
func (c *cache) get(ctx context.Context, promql string, now time.Time, maxAge time.Duration, run func(context.Context) ([]Sample, error)) *result {
	c.mu.Lock()
	r, ok := c.results[promql]
	if ok && (now.Before(r.until) || !r.isDone()) {
		c.mu.Unlock()
		return r.wait(ctx)
	}
	r = &result{until: now.Add(maxAge), done: make(chan struct{})}
	if c.results == nil {
		c.results = map[string]*result{}
	}
	if len(c.results) >= maxCached {
		c.evict(now)
	}
	c.results[promql] = r
	c.mu.Unlock()
	defer close(r.done)
	r.samples, r.err = run(context.WithoutCancel(ctx))
	return r
}

// evict removes the results that are too old, or all of them. The caller holds mu.
func (c *cache) evict(now time.Time) {
	for key, r := range c.results {
		if !now.Before(r.until) {
			delete(c.results, key)
		}
	}
	if len(c.results) >= maxCached {
		clear(c.results)
	}
}

// clear removes all results.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.results)
}

func (r *result) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

func (r *result) wait(ctx context.Context) *result {
	select {
	case <-r.done:
		return r
	case <-ctx.Done():
		return &result{err: ctx.Err()}
	}
}

// valuesKey selects samples: by the value of a label, of one namespace, which is the value
// of another label.
type valuesKey struct{ label, namespaceLabel, namespace string }

// by returns the samples by the value of a label. NaN is absent, and so are samples that
// say that they are of another namespace: a rule's query may leave out the matchers.
func (r *result) by(k valuesKey) map[string]Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	if values, ok := r.byLabel[k]; ok {
		return values
	}
	values := make(map[string]Sample, len(r.samples))
	for _, s := range r.samples {
		name, namespace := s.Labels.Get(k.label), s.Labels.Get(k.namespaceLabel)
		if name == "" || math.IsNaN(s.Value) || k.namespace != "" && namespace != "" && namespace != k.namespace {
			continue
		}
		if _, taken := values[name]; !taken {
			values[name] = s
		}
	}
	if r.byLabel == nil {
		r.byLabel = map[valuesKey]map[string]Sample{}
	}
	r.byLabel[k] = values
	return values
}
