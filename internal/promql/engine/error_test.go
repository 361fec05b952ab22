// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// faulty is a storage whose methods fail one by one.
type faulty struct {
	open, read error
	wait       bool // for the end of the query
}

func (f faulty) Querier(int64, int64) (storage.Querier, error) {
	return faultyQuerier{storage.NoopQuerier(), f}, f.open
}

type faultyQuerier struct {
	storage.Querier
	f faulty
}

func (q faultyQuerier) Select(ctx context.Context, _ bool, _ *storage.SelectHints, _ ...*labels.Matcher) storage.SeriesSet {
	return &faultySet{storage.NoopSeriesSet(), ctx, q.f}
}

func (q faultyQuerier) LabelNames(ctx context.Context, _ *storage.LabelHints, _ ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, (&faultySet{storage.NoopSeriesSet(), ctx, q.f}).wait()
}

func (q faultyQuerier) LabelValues(ctx context.Context, _ string, _ *storage.LabelHints, _ ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, (&faultySet{storage.NoopSeriesSet(), ctx, q.f}).wait()
}

type faultySet struct {
	storage.SeriesSet
	ctx context.Context
	f   faulty
}

func (s *faultySet) wait() error {
	if s.f.wait {
		<-s.ctx.Done()
		return s.ctx.Err()
	}
	return s.f.read
}

func (s *faultySet) Next() bool { _ = s.wait(); return false }
func (s *faultySet) Err() error { return s.wait() }

// all runs each kind of request, and returns their errors.
func all(ctx context.Context, e *Engine, q Query) map[string]error {
	s := Selection{Match: []string{"up"}, From: now, To: now}
	out := map[string]error{}
	_, _, out["instant"] = e.Instant(ctx, q, now)
	_, _, out["range"] = e.Range(ctx, q, now.Add(-time.Minute), now, time.Second)
	_, _, out["series"] = e.Series(ctx, q, s)
	_, _, out["names"] = e.LabelNames(ctx, q, s)
	_, _, out["values"] = e.LabelValues(ctx, q, "pod", s)
	return out
}

// What ends a query while it reads series is told as what it is: a timeout, a client that
// has gone, or a storage that cannot be read. The last is for the operator alone.
func TestErrorsWhileSeriesAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		errDisk := errors.New("disk SECRET")
		f := func(what string, store faulty, q Query, ctx context.Context, want error, result, reason string) {
			t.Helper()
			log.Reset()
			e := New(Config{Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))}, store)
			for kind, err := range all(ctx, e, q) {
				n := numberError(err)
				if want != nil && !errors.Is(err, want) || resultOf(err) != result || n.Reason() != reason || n.Answered() || strings.Contains(n.Public(), "SECRET") {
					t.Errorf("%s, %s: %v is %s, %s %q, answered %v; want %v, %s, %s", what, kind, err, resultOf(err), n.Reason(), n.Public(), n.Answered(), want, result, reason)
				}
			}
			if n := strings.Count(log.String(), "disk SECRET"); n != 0 && want != errDisk || n != 1 && want == errDisk {
				t.Errorf("%s: the log is\n%s", what, &log)
			}
			time.Sleep(logEvery)
			if all(ctx, e, q); want == errDisk && strings.Count(log.String(), "disk SECRET") != 2 {
				t.Errorf("%s: a minute later the log is\n%s", what, &log)
			}
		}
		short := Query{PromQL: "up", Timeout: time.Second}
		f("a slow storage", faulty{wait: true}, short, t.Context(), promql.ErrQueryTimeout("reading series"), "limited", "timeout")
		gone, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		f("a client that goes", faulty{wait: true}, Query{PromQL: "up"}, gone, nil, "canceled", "timeout")
		f("no querier", faulty{open: errDisk}, short, t.Context(), errDisk, "failed", "backend_error")
		f("no series", faulty{read: errDisk}, short, t.Context(), errDisk, "failed", "backend_error")
	})
}
