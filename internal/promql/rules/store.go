// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/samples"
)

// Sample is a value of a series.
type Sample struct {
	Labels labels.Labels // with the metric's name
	Value  float64
}

// Store keeps the results of rules for a while, in memory. It implements
// storage.Queryable.
type Store struct {
	window   time.Duration
	maxBytes int64
	share    int64 // bytes of one payer

	label string // of a series with its namespace

	mu      sync.RWMutex
	byName  map[string]*resultSet // by the metric's name
	bytes   map[fair.Payer]int64  // by payer
	total   int64
	changes uint64 // of the resources that have metrics

	incomplete map[string][]engine.Incomplete // by rule
}

// resultSet are the series of one metric.
type resultSet struct {
	all       map[string]*result // by all labels
	objects   map[object][]*result
	resources map[resource]int // series that describe objects of each
}

// result is one series. Points are only appended; what a reader got never changes.
type result struct {
	labels labels.Labels
	rule   string // the rule that records the series
	payer  fair.Payer
	// trusted series are results of rules that may speak for all namespaces.
	trusted  bool
	interval time.Duration // of the rule
	points   []samples.Sample
	bytes    int64 // that are charged
}

const (
	// seriesBytes is the memory of a series without its labels and points, with its
	// place in the index of objects.
	seriesBytes = 600
	pointBytes  = 16
	// payerShare is the part of the memory that one namespace may use.
	payerShare = 8
)

// NewStore makes a store of at most maxBytes bytes. Samples older than window are
// dropped.
func NewStore(window time.Duration, maxBytes int64) *Store {
	return &Store{window: window, maxBytes: maxBytes, share: maxBytes / payerShare, label: "namespace", byName: map[string]*resultSet{}, bytes: map[fair.Payer]int64{}, incomplete: map[string][]engine.Incomplete{}}
}

// writer says whose results are appended.
type writer struct {
	rule     string // unique
	payer    fair.Payer
	trusted  bool
	interval time.Duration
}

// append adds one evaluation of a rule. Series of the previous evaluation that are
// missing end. If it returns an error, some of the samples are not stored.
func (s *Store) append(w *writer, at time.Time, previous map[string]*result, samples []Sample) (current map[string]*result, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current = make(map[string]*result, len(samples))
	for i := range samples {
		x := &samples[i]
		key := string(x.Labels.Bytes(nil))
		r, refused := s.series(w, key, x.Labels)
		if refused != nil {
			err = refused
			continue
		}
		current[key] = r
		s.add(r, at, x.Value)
	}
	for key, r := range previous {
		if current[key] == nil {
			s.add(r, at, math.Float64frombits(value.StaleNaN))
		}
	}
	return current, err
}

// setIncomplete sets what the series of a rule lack.
func (s *Store) setIncomplete(rule string, list []engine.Incomplete) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(list) == 0 {
		delete(s.incomplete, rule)
	} else {
		s.incomplete[rule] = list
	}
}

// Incomplete returns what the series of all rules lack, in any order.
func (s *Store) Incomplete() (out []engine.Incomplete) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, list := range s.incomplete {
		out = append(out, list...)
	}
	return out
}

// end marks series as stale.
func (s *Store) end(at time.Time, previous map[string]*result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range previous {
		s.add(r, at, math.Float64frombits(value.StaleNaN))
	}
}

// series returns the series of a rule, and makes it. s.mu is held.
func (s *Store) series(w *writer, key string, l labels.Labels) (*result, error) {
	set := s.byName[l.Get(model.MetricNameLabel)]
	if set == nil {
		set = &resultSet{all: map[string]*result{}, objects: map[object][]*result{}, resources: map[resource]int{}}
	}
	if r := set.all[key]; r != nil {
		if r.rule != w.rule && !r.ended() {
			return nil, fmt.Errorf("the series %s is the result of two rules", excerpt.Of(l.String(), maxText))
		}
		if r.trusted != w.trusted {
			s.unlink(set, r)
			r.trusted = w.trusted
			s.link(set, r)
		}
		r.rule, r.interval = w.rule, w.interval
		return r, nil
	}
	r := &result{labels: l, rule: w.rule, payer: w.payer, trusted: w.trusted, interval: w.interval}
	r.bytes = seriesBytes + 2*int64(l.ByteSize()) + pointBytes*int64(s.window/max(w.interval, time.Millisecond)+2)*3/2
	if s.total+r.bytes > s.maxBytes || !w.trusted && s.bytes[w.payer]+r.bytes > s.share {
		return nil, fmt.Errorf("the results of rules need more memory than %d MiB in all, or %d MiB for one namespace: record fewer series, or at a longer interval", s.maxBytes>>20, s.share>>20)
	}
	s.byName[l.Get(model.MetricNameLabel)] = set
	set.all[key] = r
	s.link(set, r)
	s.total += r.bytes
	s.bytes[w.payer] += r.bytes
	return r, nil
}

// link indexes a series by the objects that it describes. s.mu is held.
func (s *Store) link(set *resultSet, r *result) {
	for _, o := range r.objects(s.label) {
		set.objects[o] = append(set.objects[o], r)
		if set.resources[o.resource]++; set.resources[o.resource] == 1 {
			s.changes++
		}
	}
}

// unlink is link's inverse. s.mu is held.
func (s *Store) unlink(set *resultSet, r *result) {
	for _, o := range r.objects(s.label) {
		left := slices.DeleteFunc(set.objects[o], func(x *result) bool { return x == r })
		if set.objects[o] = left; len(left) == 0 {
			delete(set.objects, o)
		}
		if set.resources[o.resource]--; set.resources[o.resource] == 0 {
			delete(set.resources, o.resource)
			s.changes++
		}
	}
}

// ended reports whether the newest sample says that the series has ended.
func (r *result) ended() bool {
	return len(r.points) == 0 || value.IsStaleNaN(r.points[len(r.points)-1].V)
}

// add appends a point. Points that are not newer than the last are dropped. s.mu is held.
func (s *Store) add(r *result, at time.Time, v float64) {
	t := at.UnixMilli()
	if n := len(r.points); n > 0 && (r.points[n-1].T >= t || r.ended() && value.IsStaleNaN(v)) {
		return
	}
	oldest := t - s.window.Milliseconds()
	i := sort.Search(len(r.points), func(i int) bool { return r.points[i].T >= oldest })
	if len(r.points) == cap(r.points) || i > cap(r.points)/2 {
		live := r.points[i:]
		r.points = append(make([]samples.Sample, 0, len(live)+len(live)/4+16), live...)
	} else {
		r.points = r.points[i:]
	}
	r.points = append(r.points, samples.Sample{T: t, V: v})
}

// Sweep removes series without a sample in the window.
func (s *Store) Sweep(now time.Time) {
	oldest := now.Add(-s.window).UnixMilli()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, set := range s.byName {
		for key, r := range set.all {
			if n := len(r.points); n > 0 && r.points[n-1].T >= oldest {
				continue
			}
			delete(set.all, key)
			s.unlink(set, r)
			s.total -= r.bytes
			if s.bytes[r.payer] -= r.bytes; s.bytes[r.payer] <= 0 {
				delete(s.bytes, r.payer)
			}
		}
		if len(set.all) == 0 {
			delete(s.byName, name)
		}
	}
}

// StoreStats counts what a store holds.
type StoreStats struct {
	Series int
	Bytes  int64 // that are charged
}

// Stats returns what the store holds.
func (s *Store) Stats() (x StoreStats) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, set := range s.byName {
		x.Series += len(set.all)
	}
	x.Bytes = s.total
	return x
}

// Namespaces returns the namespaces that the series have, in any order.
func (s *Store) Namespaces() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	found := map[string]bool{}
	for _, set := range s.byName {
		for _, r := range set.all {
			if ns := r.labels.Get(s.label); ns != "" {
				found[ns] = true
			}
		}
	}
	return slices.Collect(maps.Keys(found))
}

// Querier implements storage.Queryable.
func (s *Store) Querier(from, to int64) (storage.Querier, error) {
	return &querier{store: s, from: from, to: to}, nil
}

type querier struct {
	store    *Store
	from, to int64 // ms
}

// Close implements storage.LabelQuerier.
func (q *querier) Close() error { return nil }

// seriesView is a series with its points in a range of time.
type seriesView struct {
	labels labels.Labels
	points []samples.Sample
}

// matching returns the series with samples in the range, sorted by their labels.
func (q *querier) matching(matchers []*labels.Matcher) (out []seriesView) {
	q.store.mu.RLock()
	defer q.store.mu.RUnlock()
	visit := func(set *resultSet) {
		for _, r := range set.all {
			if slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(r.labels.Get(m.Name)) }) {
				continue
			}
			from := sort.Search(len(r.points), func(i int) bool { return r.points[i].T >= q.from })
			to := sort.Search(len(r.points), func(i int) bool { return r.points[i].T > q.to })
			if from < to {
				out = append(out, seriesView{r.labels, r.points[from:to:to]})
			}
		}
	}
	if i := slices.IndexFunc(matchers, isName); i >= 0 {
		if set := q.store.byName[matchers[i].Value]; set != nil {
			visit(set)
		}
	} else {
		for _, set := range q.store.byName {
			visit(set)
		}
	}
	slices.SortFunc(out, func(a, b seriesView) int { return labels.Compare(a.labels, b.labels) })
	return out
}

// isName reports whether a matcher names one metric.
func isName(m *labels.Matcher) bool {
	return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual
}

// Select implements storage.Querier.
func (q *querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return &seriesSet{all: q.matching(matchers), at: -1}
}

// LabelValues implements storage.LabelQuerier.
func (q *querier) LabelValues(_ context.Context, name string, _ *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	found := map[string]bool{}
	for _, s := range q.matching(matchers) {
		if v := s.labels.Get(name); v != "" {
			found[v] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil, nil
}

// LabelNames implements storage.LabelQuerier.
func (q *querier) LabelNames(_ context.Context, _ *storage.LabelHints, matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	found := map[string]bool{}
	for _, s := range q.matching(matchers) {
		s.labels.Range(func(l labels.Label) { found[l.Name] = true })
	}
	return slices.Sorted(maps.Keys(found)), nil, nil
}

type seriesSet struct {
	all []seriesView
	at  int
}

// Next implements storage.SeriesSet.
func (s *seriesSet) Next() bool { s.at++; return s.at < len(s.all) }

// At implements storage.SeriesSet.
func (s *seriesSet) At() storage.Series { return &s.all[s.at] }

// Err implements storage.SeriesSet.
func (s *seriesSet) Err() error { return nil }

// Warnings implements storage.SeriesSet.
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// Labels implements storage.Series.
func (s *seriesView) Labels() labels.Labels { return s.labels }

// Iterator implements storage.Series.
func (s *seriesView) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	it := samples.Reuse(reuse)
	it.View(s.points)
	return it
}

// Append stores samples of the operator's, without a rule.
func (s *Store) Append(at time.Time, samples []Sample) error {
	_, err := s.append(&writer{trusted: true, interval: time.Second}, at, nil, samples)
	return err
}
