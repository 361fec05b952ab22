// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
)

// Requests for one query share it while it runs, and while its result is fresh.
func TestRequestsShareAQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		runs, stop := 0, make(chan struct{})
		run := func(ctx context.Context) ([]Sample, error) {
			runs++
			<-stop
			return []Sample{{Value: float64(runs)}}, ctx.Err()
		}
		now := time.Unix(100, 0)
		starter, gone := context.WithCancel(t.Context())
		results := make(chan *result, 20)
		go func() { results <- c.get(starter, "up", now, time.Second, run) }()
		synctest.Wait()
		for i := range 19 { // also those that come after the result would be too old
			go func() { results <- c.get(t.Context(), "up", now.Add(time.Duration(i)*time.Second), time.Second, run) }()
		}
		synctest.Wait()
		if r := c.get(canceled(t), "up", now, time.Second, run); !errors.Is(r.err, context.Canceled) {
			t.Errorf("a request that is gone: %+v", r)
		}
		gone() // the others still wait for its query
		close(stop)
		for range 20 {
			if r := <-results; r.err != nil || len(r.samples) != 1 || r.samples[0].Value != 1 {
				t.Errorf("%v, %v", r.samples, r.err)
			}
		}
		f := func(after time.Duration, want float64) {
			t.Helper()
			if r := c.get(t.Context(), "up", now.Add(after), time.Second, run); r.samples[0].Value != want {
				t.Errorf("after %s: the result of run %v, want %v", after, r.samples[0].Value, want)
			}
		}
		f(time.Second-1, 1)
		f(time.Second, 2)
		f(2*time.Second-1, 2)
		c.clear()
		f(2*time.Second-1, 3)
	})
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// The cache is bounded. It forgets old results first.
func TestCacheIsBounded(t *testing.T) {
	var c cache
	now := time.Unix(100, 0)
	runs := 0
	get := func(i int, at time.Time) {
		c.get(t.Context(), fmt.Sprint(i), at, time.Second, func(context.Context) ([]Sample, error) { runs++; return nil, nil })
	}
	for i := range maxCached {
		get(i, now.Add(time.Duration(i%2)*time.Second))
	}
	get(maxCached, now.Add(time.Second)) // the even ones are too old
	if n := len(c.results); n != maxCached/2+1 {
		t.Errorf("%d results, want %d", n, maxCached/2+1)
	}
	if get(1, now.Add(time.Second)); runs != maxCached+1 {
		t.Errorf("%d queries, want %d: a fresh result was forgotten", runs, maxCached+1)
	}
	for i := range maxCached {
		get(2*maxCached+i, now.Add(time.Second))
		if len(c.results) > maxCached {
			t.Fatalf("%d results; at most %d are kept", len(c.results), maxCached)
		}
	}
}

// NaN is absent, and of several series of one object the first counts.
func TestResultByLabel(t *testing.T) {
	r := &result{samples: []Sample{
		{labels.FromStrings("pod", "a"), math.NaN(), time.Time{}},
		{labels.FromStrings("pod", "a"), 1, time.Time{}},
		{labels.FromStrings("pod", "a"), 2, time.Time{}},
		{labels.FromStrings("node", "n"), 3, time.Time{}},
		{labels.FromStrings("pod", "z"), 0, time.Time{}},
	}}
	for range 2 { // made, and kept
		got := r.by(valuesKey{label: "pod"})
		if len(got) != 2 || got["a"].Value != 1 || got["z"].Value != 0 {
			t.Errorf("%v", got)
		}
		if got = r.by(valuesKey{label: "node"}); len(got) != 1 || got["n"].Value != 3 {
			t.Errorf("%v", got)
		}
	}
}
