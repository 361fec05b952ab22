// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/window/page"
)

// Only returns a storage that shows the series of some namespaces: those whose label
// has one of the values. nil: all series, also those without the label; empty: none.
func Only(q storage.Queryable, label string, namespaces []string) storage.Queryable {
	if namespaces == nil {
		return q
	}
	return &scopedStorage{Queryable: q, label: label, namespaces: namespaces}
}

type scopedStorage struct {
	storage.Queryable
	label      string
	namespaces []string
}

// Querier implements storage.Queryable.
func (s *scopedStorage) Querier(from, to int64) (storage.Querier, error) {
	q, err := s.Queryable.Querier(from, to)
	if err != nil {
		return nil, err
	}
	m, err := s.matcher()
	if err != nil {
		return nil, err
	}
	return &scopedQuerier{Querier: q, scope: s, matcher: m}, nil
}

// matcher selects the namespaces; nil if there are none.
func (s *scopedStorage) matcher() (*labels.Matcher, error) {
	quoted := make([]string, 0, len(s.namespaces))
	for _, n := range s.namespaces {
		if n != "" { // it would match series without the label
			quoted = append(quoted, regexp.QuoteMeta(n))
		}
	}
	var (
		m   *labels.Matcher
		err error
	)
	switch len(quoted) {
	case 0:
		return nil, nil
	case 1:
		m, err = labels.NewMatcher(labels.MatchEqual, s.label, s.namespaces[slices.IndexFunc(s.namespaces, func(n string) bool { return n != "" })])
	default:
		m, err = labels.NewMatcher(labels.MatchRegexp, s.label, strings.Join(quoted, "|"))
	}
	if err != nil {
		return nil, fmt.Errorf("limit a query to its namespaces: %w", err)
	}
	return m, nil
}

type scopedQuerier struct {
	storage.Querier
	scope   *scopedStorage
	matcher *labels.Matcher // nil: no namespace
}

// with returns the matchers with that of the namespaces, in a slice of its own.
func (q *scopedQuerier) with(matchers []*labels.Matcher) []*labels.Matcher {
	return append(slices.Clip(slices.Clone(matchers)), q.matcher)
}

// Select implements storage.Querier.
func (q *scopedQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	if q.matcher == nil {
		return storage.EmptySeriesSet()
	}
	if hints != nil && hints.By { // scopedSet looks at the label
		grouped := *hints
		grouped.Grouping = append(slices.Clip(hints.Grouping), q.scope.label)
		hints = &grouped
	}
	set := q.Querier.Select(ctx, sorted, hints, q.with(matchers)...)
	return &scopedSet{SeriesSet: set, label: q.scope.label, matcher: q.matcher}
}

// LabelValues implements storage.LabelQuerier.
func (q *scopedQuerier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	if q.matcher == nil {
		return nil, nil, nil
	}
	return q.Querier.LabelValues(ctx, name, hints, q.with(matchers)...)
}

// LabelNames implements storage.LabelQuerier.
func (q *scopedQuerier) LabelNames(ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	if q.matcher == nil {
		return nil, nil, nil
	}
	return q.Querier.LabelNames(ctx, hints, q.with(matchers)...)
}

// scopedSet drops series of other namespaces, should the storage ignore the matcher.
type scopedSet struct {
	storage.SeriesSet
	label   string
	matcher *labels.Matcher
}

// Next implements storage.SeriesSet.
func (s *scopedSet) Next() bool {
	for s.SeriesSet.Next() {
		if s.matcher.Matches(s.SeriesSet.At().Labels().Get(s.label)) {
			return true
		}
	}
	return false
}

// limit returns the storage of one query: with its namespaces and its limits.
func (e *Engine) limit(q Query, p plan) storage.Queryable {
	b := &budget{maxSeries: e.cfg.MaxSeries, maxBytes: e.cfg.MaxBytes, plan: p, bytes: int64(p.bytes())}
	return &limitedStorage{Queryable: Only(e.storage, e.cfg.Label, q.Namespaces), budget: b, incomplete: e.incompleteOf(q)}
}

// budget counts what the selectors of one query read.
type budget struct {
	maxSeries int
	maxBytes  int64
	plan      plan

	mu     sync.Mutex
	series int
	bytes  int64
}

// seriesBytes is the memory of a series in the engine, without its labels and samples.
const seriesBytes = 256

// labelCopies is how many copies of a selector's labels a query holds at once: the
// series, the operands and the result of the operation that is evaluated.
const labelCopies = 3

// add charges a series. Its error is a *LimitError.
func (b *budget) add(l labels.Labels) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.series++
	size := float64(l.ByteSize())
	if b.plan.growth > 1 {
		size = (size + float64(b.plan.literals)) * b.plan.growth
	}
	b.bytes += seriesBytes + labelCopies*int64(min(size, float64(b.maxBytes)))
	switch {
	case b.series > b.maxSeries:
		return exceeds(LimitSeries, "the query reads more than %d series: select fewer, or use a recording rule", b.maxSeries)
	case b.bytes > b.maxBytes:
		return errLabels(b.maxBytes)
	}
	return nil
}

func errLabels(most int64) error {
	return exceeds(LimitMemory, "the query needs more than %d KiB for the labels of its series: select fewer series, or use a recording rule", most>>10)
}

type limitedStorage struct {
	storage.Queryable
	budget     *budget
	incomplete []Incomplete
}

// Querier implements storage.Queryable.
func (s *limitedStorage) Querier(from, to int64) (storage.Querier, error) {
	q, err := s.Queryable.Querier(from, to)
	if err != nil {
		return nil, &StorageError{err}
	}
	return &limitedQuerier{q, s.budget, s.incomplete}, nil
}

// anyExported selects all series. It tells the windows that the query asks for the owners
// of GPUs as exported_pod and so on, maybe in another place than this selector: its
// selectors have the same labels, or a join would find nothing.
var anyExported, _ = labels.NewMatcher(labels.MatchRegexp, page.Exported("namespace"), ".*")

type limitedQuerier struct {
	storage.Querier
	budget     *budget
	incomplete []Incomplete
}

// Select implements storage.Querier.
func (q *limitedQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	selected := matchers
	if q.budget.plan.exported {
		selected = append(slices.Clip(selected), anyExported)
	}
	set := &limitedSet{SeriesSet: q.Querier.Select(ctx, sorted, hints, selected...), ctx: ctx, budget: q.budget}
	for i := range q.incomplete {
		if x := &q.incomplete[i]; x.isSelected(matchers) {
			set.notes.Add(x)
		}
	}
	return set
}

// limitedSet ends when the query's context is done or its budget is used up.
type limitedSet struct {
	storage.SeriesSet
	ctx    context.Context // of one Select, which the set is the result of
	budget *budget
	notes  annotations.Annotations
	err    error
	spare  []limitedSeries // allocated together
}

// Warnings implements storage.SeriesSet.
func (s *limitedSet) Warnings() annotations.Annotations {
	notes := s.notes
	return notes.Merge(s.SeriesSet.Warnings())
}

// Next implements storage.SeriesSet.
func (s *limitedSet) Next() bool {
	if s.err != nil {
		return false
	}
	if s.err = s.ctx.Err(); s.err != nil || !s.SeriesSet.Next() {
		return false
	}
	s.err = s.budget.add(s.SeriesSet.At().Labels())
	return s.err == nil
}

// At implements storage.SeriesSet.
func (s *limitedSet) At() storage.Series {
	if len(s.spare) == cap(s.spare) {
		s.spare = make([]limitedSeries, 0, min(max(8, 2*cap(s.spare)), 512))
	}
	s.spare = append(s.spare, limitedSeries{s.SeriesSet.At(), s.ctx})
	return &s.spare[len(s.spare)-1]
}

// Err implements storage.SeriesSet.
func (s *limitedSet) Err() error {
	if s.err != nil {
		return s.err
	}
	return storageError(s.SeriesSet.Err())
}

// storageError marks an error of the storage; nil for nil.
func storageError(err error) error {
	if err == nil {
		return nil
	}
	return &StorageError{err}
}

type limitedSeries struct {
	storage.Series
	ctx context.Context // as limitedSet's
}

// Iterator implements storage.Series.
func (s *limitedSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it, ok := reuse.(*limitedIterator)
	if !ok {
		it = &limitedIterator{}
	}
	it.Iterator, it.ctx, it.err = s.Series.Iterator(it.Iterator), s.ctx, nil
	return it
}

// limitedIterator looks at the query's context now and then, because the engine does
// so only between series and steps. It leaves Seek as it is: the engine seeks once a step.
type limitedIterator struct {
	chunkenc.Iterator
	ctx  context.Context // as limitedSet's
	read int
	err  error
}

// checkEvery is the number of samples between two looks at the context.
const checkEvery = 4096

func (i *limitedIterator) ended() bool {
	if i.read++; i.read%checkEvery == 0 && i.err == nil {
		i.err = i.ctx.Err()
	}
	return i.err != nil
}

// Next implements chunkenc.Iterator.
func (i *limitedIterator) Next() chunkenc.ValueType {
	if i.ended() {
		return chunkenc.ValNone
	}
	return i.Iterator.Next()
}

// Err implements chunkenc.Iterator.
func (i *limitedIterator) Err() error {
	if i.err != nil {
		return i.err
	}
	return storageError(i.Iterator.Err())
}
