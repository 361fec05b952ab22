// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// memory is a storage of series in memory.
type memory struct {
	series []storage.Series
	// honest storages look at the matchers; others return everything.
	dishonest bool
	// before runs at each Select, if it is not nil.
	before func(ctx context.Context)
	// hints are those of the last Select.
	hints *storage.SelectHints
	// exported counts the Selects that ask for the label exported_namespace.
	exported int
	mu       sync.Mutex // of hints and exported
}

type point struct {
	t int64
	v float64
}

func (p point) T() int64                      { return p.t }
func (p point) ST() int64                     { return 0 }
func (p point) F() float64                    { return p.v }
func (p point) H() *histogram.Histogram       { return nil }
func (p point) FH() *histogram.FloatHistogram { return nil }
func (p point) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (p point) Copy() chunks.Sample           { return p }

// now is the newest time of the tests' series.
var now = time.Unix(1_800_000_000, 0)

// add adds a series with n samples, a second apart, that ends now: n, n-1, … 1 s ago.
func (m *memory) add(t testing.TB, metric string, values ...float64) {
	t.Helper()
	l, err := parser.NewParser(parser.Options{}).ParseMetric(metric)
	if err != nil {
		t.Fatal(err)
	}
	samples := make([]chunks.Sample, len(values))
	for i, v := range values {
		samples[i] = point{now.Add(-time.Duration(len(values)-1-i) * time.Second).UnixMilli(), v}
	}
	m.series = append(m.series, storage.NewListSeries(l, samples))
}

func (m *memory) Querier(int64, int64) (storage.Querier, error) { return &memoryQuerier{m}, nil }

type memoryQuerier struct{ m *memory }

func (q *memoryQuerier) Close() error { return nil }

func (q *memoryQuerier) matching(matchers []*labels.Matcher) (out []storage.Series) {
	for _, s := range q.m.series {
		if q.m.dishonest || !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
			out = append(out, s)
		}
	}
	return out
}

func (q *memoryQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	q.m.mu.Lock()
	q.m.hints = hints
	if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return m.Name == "exported_namespace" && m.Matches("") && m.Matches("x") }) {
		q.m.exported++
	}
	q.m.mu.Unlock()
	if q.m.before != nil {
		q.m.before(ctx)
	}
	out := q.matching(matchers)
	slices.SortFunc(out, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &memorySet{all: out, at: -1}
}

func (q *memoryQuerier) LabelValues(_ context.Context, name string, _ *storage.LabelHints, matchers ...*labels.Matcher) (out []string, _ annotations.Annotations, _ error) {
	for _, s := range q.matching(matchers) {
		out = append(out, s.Labels().Get(name))
	}
	slices.Sort(out)
	return slices.Compact(out), nil, nil
}

func (q *memoryQuerier) LabelNames(_ context.Context, _ *storage.LabelHints, matchers ...*labels.Matcher) (out []string, _ annotations.Annotations, _ error) {
	for _, s := range q.matching(matchers) {
		s.Labels().Range(func(l labels.Label) { out = append(out, l.Name) })
	}
	slices.Sort(out)
	return slices.Compact(out), nil, nil
}

type memorySet struct {
	all []storage.Series
	at  int
}

func (s *memorySet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *memorySet) At() storage.Series                { return s.all[s.at] }
func (s *memorySet) Err() error                        { return nil }
func (s *memorySet) Warnings() annotations.Annotations { return nil }
