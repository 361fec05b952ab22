// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

var errBroken = errors.New("broken")

// broken is a storage whose series cannot be read.
type broken struct{}

func (broken) Querier(int64, int64) (storage.Querier, error) {
	return brokenQuerier{storage.NoopQuerier()}, nil
}

type brokenQuerier struct{ storage.Querier }

func (brokenQuerier) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return storage.ErrSeriesSet(errBroken)
}

func TestJoin(t *testing.T) {
	windows, results := &memory{}, &memory{}
	windows.add(t, `up{node="b"}`, 1, 1)
	windows.add(t, `up{node="a"}`, 1, 2)
	windows.add(t, `both{node="a"}`, 3)
	results.add(t, `record{node="a"}`, 4)
	results.add(t, `both{node="a"}`, 5, 3)
	results.add(t, `both{node="b"}`, 6)
	e := New(Config{}, Join(windows, results))
	f := func(text, want string) {
		t.Helper()
		v, _, err := e.Instant(t.Context(), Query{PromQL: text}, now)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := v.String(); got != want {
			t.Errorf("%s: %s; want %s", text, got, want)
		}
	}
	f(`sum(up)`, `{} => 3 @[1800000000000]`)
	f(`record * 2`, `{node="a"} => 8 @[1800000000000]`)
	f(`count(both)`, `{} => 2 @[1800000000000]`)
	f(`count_over_time(both{node="a"}[10s])`, `{node="a"} => 2 @[1800000000000]`)
	f(`sum by(node)(both)`, "{node=\"a\"} => 3 @[1800000000000]\n{node=\"b\"} => 6 @[1800000000000]")
	if windows.hints.By || results.hints.By {
		t.Error("series that are equal by the labels of a grouping alone would be merged")
	}
	f(`count({node=~".+"})`, `{} => 5 @[1800000000000]`)
	f(`none`, ``)
	for _, s := range []storage.Queryable{Join(windows, broken{}), Join(broken{}, windows), Join(broken{}, results)} {
		if _, _, err := New(Config{}, s).Instant(t.Context(), Query{PromQL: `sum(up)`}, now); !errors.Is(err, errBroken) {
			t.Errorf("a storage fails: the query's error is %v", err)
		}
	}
	// A storage that does not open closes those that did.
	opened := &closing{}
	if _, err := Join(opened, faulty{open: errBroken}).Querier(0, 1); !errors.Is(err, errBroken) || opened.closed != 1 {
		t.Errorf("%v, and %d storages were closed", err, opened.closed)
	}
}

// closing counts how often its querier is closed.
type closing struct{ closed int }

func (c *closing) Querier(int64, int64) (storage.Querier, error) {
	return closingQuerier{storage.NoopQuerier(), c}, nil
}

type closingQuerier struct {
	storage.Querier
	of *closing
}

func (q closingQuerier) Close() error { q.of.closed++; return nil }
