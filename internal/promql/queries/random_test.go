// SPDX-License-Identifier: Apache-2.0

package queries

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The bounds of a query's turn in TestRandomOwners: at most 24 queries of 0.3 s wait for
// one slot, and a failing one pauses for up to 36 s.
const (
	longestTurn  = 8 * time.Second
	longestPause = 36 * time.Second
)

// crowd is random owners that come, change and go.
type crowd struct {
	*rig
	rand  *rand.Rand
	kinds map[string]Kind        // by owner, which is NAMESPACE/NAME
	since map[tenantKey]standing // of queries with an owner
	told  map[string]time.Time   // when an owner was told last
}

type tenantKey struct {
	namespace string
	key       Key
}

// standing is since when a query is evaluated, or refused.
type standing struct {
	refused bool
	at      time.Time
}

// Random owners come, change and go for 45 minutes, from several seeds. No namespace
// exceeds its budget, nor the queries that run their slots. Every owner within the budget
// has its queries evaluated, and is told, within a bound. Beyond the budget nothing is
// evaluated, and no room is left. In the end nothing remains.
func TestRandomOwners(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			schedule(t, SchedulerConfig{PerNamespace: 8}, func(r *rig) {
				c := &crowd{
					rig: r, rand: rand.New(rand.NewPCG(seed, 2)), kinds: map[string]Kind{},
					since: map[tenantKey]standing{}, told: map[string]time.Time{},
				}
				c.takes(func(promql string) time.Duration { return time.Duration(len(promql)%4) * 100 * time.Millisecond })
				for end := time.Now().Add(45 * time.Minute); time.Now().Before(end) && !t.Failed(); {
					for range 1 + c.rand.IntN(3) {
						c.change()
						c.note()
					}
					c.failSome()
					synctest.Wait()
					time.Sleep(time.Duration(c.rand.Int64N(int64(40 * time.Second))))
					synctest.Wait()
					c.check()
				}
			})
		})
	}
}

// change adds, replaces or removes an owner.
func (c *crowd) change() {
	namespace, name := fmt.Sprint("ns", c.rand.IntN(3)), fmt.Sprint("o", c.rand.IntN(12))
	id := namespace + "/" + name
	kind, ok := c.kinds[id]
	switch {
	case ok && c.rand.IntN(2) == 0:
		c.remove(kind, namespace, name)
		delete(c.kinds, id)
		return
	case !ok:
		kind = []Kind{GPUAutoscaler, MetricQuery}[c.rand.IntN(2)]
	}
	o := &Owner{Name: name, Created: epoch.Add(time.Duration(c.rand.IntN(10)) * time.Hour), Changed: func() {
		c.backend.mu.Lock()
		defer c.backend.mu.Unlock()
		c.told[id] = time.Now()
	}}
	for range c.rand.IntN(4) {
		q := Query{Key: keyOf(namespace, fmt.Sprint(namespace, " ", c.rand.IntN(14)))}
		if kind == MetricQuery && c.rand.IntN(4) == 0 {
			q.Every = 500 * time.Millisecond
		}
		o.Queries = append(o.Queries, q)
	}
	c.kinds[id] = kind
	c.backend.mu.Lock()
	c.told[id] = time.Now() // its bound begins now
	c.backend.mu.Unlock()
	c.put(kind, namespace, o)
}

// failSome makes other queries fail from now on.
func (c *crowd) failSome() {
	failing := fmt.Sprint(c.rand.IntN(14))
	c.failsWith(func(promql string) error {
		switch _, name, _ := strings.Cut(promql, " "); {
		case name == failing:
			return errors.New("down")
		case name == "13":
			return said("no series")
		}
		return nil
	})
}

// note notes since when each query is evaluated or refused.
func (c *crowd) note() {
	now := map[tenantKey]standing{}
	c.Scheduler.mu.Lock()
	for namespace, t := range c.tenants {
		for key := range t.granted {
			now[tenantKey{namespace, key}] = standing{false, time.Now()}
		}
		for key := range t.refused {
			now[tenantKey{namespace, key}] = standing{true, time.Now()}
		}
	}
	c.Scheduler.mu.Unlock()
	for k, x := range now {
		if before, ok := c.since[k]; ok && before.refused == x.refused {
			now[k] = before
		}
	}
	c.since = now
}

// check checks what holds at any time.
func (c *crowd) check() {
	c.t.Helper()
	c.Scheduler.mu.Lock()
	defer c.Scheduler.mu.Unlock()
	c.backend.mu.Lock()
	defer c.backend.mu.Unlock()
	if c.most[""] > ForBackend().Slots {
		c.t.Errorf("%d queries ran at a time", c.most[""])
	}
	for namespace, t := range c.tenants {
		c.checkBudget(namespace, t)
		if n := c.most[namespace]; n > ForBackend().Share {
			c.t.Errorf("%d queries of %s ran at a time", n, namespace)
		}
	}
	now := time.Now()
	for k, x := range c.since {
		last := x.at
		if begun := c.backend.begun[k.key.PromQL]; len(begun) > 0 {
			if at := begun[len(begun)-1]; x.refused && at.After(x.at) {
				c.t.Errorf("%v is refused since %s and was evaluated at %s", k, x.at, at)
			} else if at.After(last) {
				last = at
			}
		}
		bound := longestTurn
		if q := c.queries[k.key]; q != nil && q.failures > 0 {
			bound += longestPause
		}
		if wait := now.Sub(last); !x.refused && wait > bound {
			c.t.Errorf("%v was evaluated %s ago", k, wait)
		}
	}
	for of, owners := range c.owners {
		for i := range owners {
			id := of.namespace + "/" + owners[i].Name
			if wait := now.Sub(c.told[id]); wait > longestTurn+longestPause && c.isServed(of.namespace, &owners[i]) {
				c.t.Errorf("%s was told %s ago", id, wait)
			}
		}
	}
}

// isServed reports whether one of the owner's queries is evaluated.
func (c *crowd) isServed(namespace string, o *Owner) bool {
	return slices.ContainsFunc(o.Queries, func(q Query) bool { _, ok := c.tenants[namespace].granted[q.Key]; return ok })
}

// checkBudget checks the queries of a namespace against its budget.
func (c *crowd) checkBudget(namespace string, t *tenant) {
	c.t.Helper()
	wanted, others := map[Key]bool{}, 0
	for kind, list := range t.owners {
		for _, o := range list {
			for _, q := range o.Queries {
				wanted[q.Key] = wanted[q.Key] || kind == GPUAutoscaler
			}
		}
	}
	for key := range t.granted {
		isSignal, ok := wanted[key]
		if !ok || c.queries[key] == nil {
			c.t.Errorf("%s: %v is granted and has no owner or no query", namespace, key)
		}
		if !isSignal {
			others++
		}
	}
	most, share := c.cfg.PerNamespace, c.shareOfMetricQueries()
	if len(t.granted) > most || others > share {
		c.t.Errorf("%s has %d queries, %d of MetricQueries only", namespace, len(t.granted), others)
	}
	for key, r := range t.refused {
		if isSignal, ok := wanted[key]; !ok || isSignal != r.signal || isSignal && len(t.granted) < most {
			c.t.Errorf("%s: %v is refused, %+v, with %d queries", namespace, key, r, len(t.granted))
		}
	}
	if got := len(t.granted) + len(t.refused); got != len(wanted) {
		c.t.Errorf("%s: %d queries are granted or refused, want %d: %v", namespace, got, len(wanted), slices.Collect(maps.Keys(wanted)))
	}
}
