// SPDX-License-Identifier: Apache-2.0

package queries_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/promtest"
)

// At a real Prometheus the slow queries of one namespace, eight times as many as run at a
// time, do not overtake another namespace's query.
func TestSlowTenantAtRealPrometheus(t *testing.T) {
	const timeout = time.Second
	client, err := client.New(client.Config{
		URL: promtest.Serve(t, "backlog{namespace=\"ns\"} 7\nbacklog{namespace=\"hostile\"} 1\n"), Timeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	scope, err := scope.New(scope.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	begun, late := 0, 0 // slow queries that were sent, and that were not answered
	slots := fair.NewSlots(queries.ForBackend())
	s := queries.NewScheduler(queries.SchedulerConfig{}, queries.SchedulerDeps{
		Slots: slots, Query: func(ctx context.Context, _, promql string) (series.Sample, error) {
			slow := strings.Contains(promql, "hostile")
			if slow {
				mu.Lock()
				begun++
				mu.Unlock()
			}
			v, err := client.Query(ctx, promql)
			if slow && err != nil && ctx.Err() == nil {
				mu.Lock()
				late++
				mu.Unlock()
			}
			return v, err
		},
	})
	asks := func(namespace string, promql ...string) (last queries.Key) {
		o := queries.Owner{Name: "web"}
		for _, x := range promql {
			limited, trusted, err := scope.Limit(namespace, x)
			if err != nil {
				t.Fatal(err)
			}
			last = queries.KeyOf(namespace, limited, trusted)
			o.Queries = append(o.Queries, queries.Query{Key: last})
		}
		s.Set(queries.GPUAutoscaler, namespace, []queries.Owner{o})
		return last
	}
	var slow []string
	for i := range 8 * queries.ForBackend().Slots {
		slow = append(slow, fmt.Sprintf("sum_over_time(sum_over_time(sum(backlog)[10m:1s])[%dm:1s])", 1000+i))
	}
	asks("hostile", slow...)
	key := asks("ns", "sum(backlog)")
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.Run(ctx) })
	sent := func() int {
		mu.Lock()
		defer mu.Unlock()
		return begun
	}
	longest, waits := 0, 0 // of another namespace that asks at the same time: slow queries that were sent before its own
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		before := sent()
		release, err := slots.Acquire(ctx, fair.Request{Payer: fair.Namespace("another")})
		if err != nil {
			t.Fatal(err)
		}
		longest, waits = max(longest, sent()-before), waits+1
		release()
		mu.Lock()
		unanswered := late
		mu.Unlock()
		a := s.Answer("ns", key)
		if !a.Evaluated.IsZero() && a.Problem == "" && unanswered >= 2*queries.ForBackend().Slots {
			if a.Sample.Value != 7 {
				t.Errorf("the query gives %g, want its own namespace's 7", a.Sample.Value)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 2 min the query gives %+v; %d slow ones were late", a, unanswered)
		}
	}
	if most := queries.ForBackend().Slots; longest > most {
		t.Errorf("a namespace waited for %d slow queries that asked after it, want %d at most", longest, most)
	}
	t.Logf("in %d waits, at most %d slow queries were sent", waits, longest)
}
