// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// native is a sample of a native histogram.
type native struct{ point }

func (native) Type() chunkenc.ValueType { return chunkenc.ValFloatHistogram }
func (native) FH() *histogram.FloatHistogram {
	return &histogram.FloatHistogram{Count: 1, Sum: 1}
}

// A query has one finite number, or says why not.
func TestNumber(t *testing.T) {
	store := tenants(t)
	store.add(t, `none_yet`, math.NaN())
	store.add(t, `long{a="`+strings.Repeat("x", 1000)+`"}`, 1)
	store.add(t, `long{a="`+strings.Repeat("y", 1000)+`"}`, 1)
	store.series = append(store.series, storage.NewListSeries(labels.FromStrings("__name__", "hist"), []chunks.Sample{native{point{t: now.UnixMilli()}}}))
	e := New(Config{MaxSeries: 4}, store)
	f := func(text string, namespaces []string, want float64, reason, says string) {
		t.Helper()
		s, err := e.Number(t.Context(), Query{PromQL: text, Namespaces: namespaces}, now)
		if reason == "" {
			if err != nil || s.Value != want || !s.At.Equal(now) {
				t.Errorf("%s: %+v, %v; want %v", text, s, err, want)
			}
			return
		}
		n, ok := err.(*NumberError) // as it is returned
		if !ok || n.Reason() != reason || !strings.Contains(n.Public(), says) || !n.Answered() || len(n.Public()) > maxQuoted+10 || n.Unwrap() == nil || n.Error() != n.Unwrap().Error() {
			t.Errorf("%s: %v, want %s %q", text, err, reason, says)
		}
	}
	f(`1.5`, nil, 1.5, "", "")
	f(`sum(up)`, []string{"team-a"}, 9, "", "")
	f(`up{pod="b-0"} * 0`, nil, 0, "", "")
	f(`up`, []string{"team-a"}, 0, "several_series", `several series, such as {__name__="up", namespace="team-a", pod="a-0"}: aggregate`)
	f(`long`, nil, 0, "several_series", "several series, such as")
	f(`up{pod="b-0"}`, []string{"team-a"}, 0, "no_series", "no series matches")
	f(`none`, nil, 0, "no_series", "no series matches")
	f(`none_yet`, nil, 0, "no_number", "returns NaN")
	f(`1/0`, nil, 0, "no_number", "returns +Inf")
	f(`-1/0`, nil, 0, "no_number", "returns -Inf")
	f(`hist`, nil, 0, "no_number", "returns a histogram")
	f(`"x"`, nil, 0, "no_number", "returns a string")
	f(`up[1m]`, []string{"team-b"}, 0, "no_number", "returns a matrix")
	f(`sum(`, nil, 0, "bad_query", "parse error")
	f(`up * on () up`, []string{"team-a"}, 0, "bad_query", "duplicate series")
	f(`up or up`, nil, 0, "limited", "more than 4 series")
	// These may have a number the next time, without a change of the query.
	g := func(err error, reason string) {
		t.Helper()
		if n := numberError(err); n.Reason() != reason || n.Answered() {
			t.Errorf("%v: %s, answered %v; want %s", err, n.Reason(), n.Answered(), reason)
		}
	}
	g(exceeds(LimitSlots, "wait"), "timeout")
	g(promql.ErrQueryTimeout("x"), "timeout")
	g(promql.ErrQueryCanceled("x"), "timeout")
	g(errPanicked, "backend_error")
	store.before = func(context.Context) { panic("of the storage") }
	if _, err := e.Number(t.Context(), Query{PromQL: "up"}, now.Add(time.Second)); err == nil || strings.Contains(err.Error(), "of the storage") || !strings.Contains(err.Error(), "internal error") {
		t.Errorf("a panic: %v", err)
	}
}
