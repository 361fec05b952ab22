// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/promql/promtest"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/promql/scope"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// At a real Prometheus the slow queries of one namespace, eight times as many
// as run at a time, delay no other namespace's query by more than one query's time.
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
	r := newRig(t)
	var mu sync.Mutex
	late := 0 // slow queries that were not answered
	r.deps.LimitQuery = scope.Limit
	r.deps.Query = func(ctx context.Context, _, promql string) (series.Sample, error) {
		s, err := client.Query(ctx, promql)
		if strings.Contains(promql, "hostile") && err != nil && ctx.Err() == nil {
			mu.Lock()
			late++
			mu.Unlock()
		}
		return s, err
	}
	for i := range 8 * queries.ForBackend().Slots {
		r.asks("hostile", fmt.Sprint("slow", i), fmt.Sprintf("sum_over_time(sum_over_time(sum(backlog)[10m:1s])[%dm:1s])", 1000+i), 0)
	}
	r.asks("ns", "web", "sum(backlog)", 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer r.running.Wait()
	defer cancel()
	r.queries.sync(ctx)
	var waits []time.Duration // of another namespace that asks at the same time
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		began := time.Now()
		release, err := r.queries.slots.Acquire(ctx, queries.Request{Payer: "another"})
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, time.Since(began))
		release()
		mu.Lock()
		slow := late
		mu.Unlock()
		reading, why := r.queries.newestAnswer("ns", queryKey{"ns", `sum(backlog{namespace="ns"})`})
		if reading.OK && why == "" && slow >= 2*queries.ForBackend().Slots {
			if reading.Value != 7 {
				t.Errorf("the query gives %g, want its own namespace's 7", reading.Value)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 2 min the query gives %+v, %q; %d slow ones were late", reading, why, slow)
		}
	}
	if longest := slices.Max(waits); longest > timeout {
		t.Errorf("a namespace waited %s for its turn, want %s at most", longest, timeout)
	}
	t.Logf("longest of %d waits: %s", len(waits), slices.Max(waits))
}
