// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
)

// Join returns a storage with the series of several. Samples of equal series are
// merged.
func Join(all ...storage.Queryable) storage.Queryable { return joined(all) }

type joined []storage.Queryable

// Querier implements storage.Queryable.
func (j joined) Querier(from, to int64) (storage.Querier, error) {
	out := make([]storage.Querier, 0, len(j))
	for _, q := range j {
		x, err := q.Querier(from, to)
		if err != nil {
			for _, opened := range out {
				_ = opened.Close()
			}
			return nil, fmt.Errorf("open a storage: %w", err)
		}
		out = append(out, x)
	}
	return &joinedQuerier{Querier: storage.NewMergeQuerier(out, nil, storage.ChainedSeriesMerge), all: out}, nil
}

// joinedQuerier merges the series of several storages. Most metrics are in one of them,
// and merging sorts all series.
type joinedQuerier struct {
	storage.Querier
	all []storage.Querier
}

// Select implements storage.Querier.
func (j *joinedQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	var only storage.SeriesSet
	for _, q := range j.all {
		set := q.Select(ctx, sorted, hints, matchers...)
		switch {
		case !set.Next():
			if set.Err() != nil || len(set.Warnings()) > 0 {
				return j.merge(ctx, sorted, hints, matchers)
			}
		case only != nil:
			return j.merge(ctx, sorted, hints, matchers)
		default:
			only = &begunSet{SeriesSet: set}
		}
	}
	if only == nil {
		return storage.EmptySeriesSet()
	}
	return only
}

// merge selects from all storages, and merges equal series.
func (j *joinedQuerier) merge(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers []*labels.Matcher) storage.SeriesSet {
	if hints != nil && hints.By {
		whole := *hints // without the labels of a grouping, other series would be equal
		whole.By, whole.Grouping = false, nil
		hints = &whole
	}
	return j.Querier.Select(ctx, sorted, hints, matchers...)
}

// begunSet is a set whose Next has been called once.
type begunSet struct {
	storage.SeriesSet
	begun bool
}

// Next implements storage.SeriesSet.
func (s *begunSet) Next() bool {
	if !s.begun {
		s.begun = true
		return true
	}
	return s.SeriesSet.Next()
}
