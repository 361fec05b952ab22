// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
)

// maxSelectors bounds the selectors of one Selection.
const maxSelectors = 64

// errTruncated is the warning of an answer that Selection.Limit cuts. Its text is
// Prometheus's.
var errTruncated = errors.New("results truncated due to limit")

// Selection selects series: those that match one of the selectors and have samples
// between two times.
type Selection struct {
	Match    []string // series selectors; empty: all series, for labels
	From, To time.Time
	Limit    int // of the results; 0: that of the engine
}

// Series returns the labels of the selected series, sorted. Its errors are those of
// Instant. Query.PromQL is not used.
func (e *Engine) Series(ctx context.Context, q Query, s Selection) (out []labels.Labels, notes annotations.Annotations, err error) {
	err = e.browse(ctx, q, s, func(ctx context.Context, r storage.Querier, sets [][]*labels.Matcher) error {
		out, notes, err = readSeries(ctx, r, s, sets)
		return err
	})
	return out, notes, err
}

func readSeries(ctx context.Context, r storage.Querier, s Selection, sets [][]*labels.Matcher) (out []labels.Labels, notes annotations.Annotations, err error) {
	hints := &storage.SelectHints{Start: s.From.UnixMilli(), End: s.To.UnixMilli(), Func: "series"} // no samples are needed
	all := make([]storage.SeriesSet, 0, len(sets))
	for _, matchers := range sets {
		all = append(all, r.Select(ctx, true, hints, matchers...))
	}
	set := storage.NewMergeSeriesSet(all, 0, storage.ChainedSeriesMerge)
	for set.Next() {
		if s.Limit > 0 && len(out) == s.Limit {
			notes = notes.Add(errTruncated)
			break
		}
		out = append(out, set.At().Labels())
	}
	return out, notes.Merge(set.Warnings()), unwrapReading(set.Err())
}

// LabelNames returns the sorted names of the selected series' labels.
func (e *Engine) LabelNames(ctx context.Context, q Query, s Selection) ([]string, annotations.Annotations, error) {
	return e.labels(ctx, q, s, func(ctx context.Context, r storage.Querier, m []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return r.LabelNames(ctx, &storage.LabelHints{}, m...)
	})
}

// LabelValues returns the sorted values of one label of the selected series.
func (e *Engine) LabelValues(ctx context.Context, q Query, name string, s Selection) ([]string, annotations.Annotations, error) {
	return e.labels(ctx, q, s, func(ctx context.Context, r storage.Querier, m []*labels.Matcher) ([]string, annotations.Annotations, error) {
		return r.LabelValues(ctx, name, &storage.LabelHints{}, m...)
	})
}

type readLabels func(context.Context, storage.Querier, []*labels.Matcher) ([]string, annotations.Annotations, error)

func (e *Engine) labels(ctx context.Context, q Query, s Selection, read readLabels) (out []string, notes annotations.Annotations, err error) {
	err = e.browse(ctx, q, s, func(ctx context.Context, r storage.Querier, sets [][]*labels.Matcher) error {
		if len(sets) == 0 {
			sets = [][]*labels.Matcher{nil}
		}
		found := map[string]bool{}
		for _, matchers := range sets {
			names, more, err := read(ctx, r, matchers)
			if err != nil {
				return unwrapReading(&StorageError{err})
			}
			notes.Merge(more)
			for _, n := range names {
				found[n] = true
			}
		}
		out = slices.Sorted(maps.Keys(found))
		return nil
	})
	if s.Limit > 0 && len(out) > s.Limit {
		out, notes = out[:s.Limit], notes.Add(errTruncated)
	}
	return out, notes, err
}

// browse opens the storage for a selection, within the limits of a query.
func (e *Engine) browse(ctx context.Context, q Query, s Selection, read func(context.Context, storage.Querier, [][]*labels.Matcher) error) (err error) {
	began := time.Now()
	q.Payer = e.payerOf(q)
	defer func() {
		err = e.contain(recover(), q, err)
		e.meters.observe(q, time.Since(began), err)
	}()
	var sets [][]*labels.Matcher
	if err := e.inTurn(ctx, q.Payer, func() (err error) { sets, err = e.matchers(s.Match); return err }); err != nil {
		return err
	}
	ctx, release, err := e.acquire(ctx, q)
	if err != nil {
		return err
	}
	defer release()
	r, err := e.limit(q, plan{growth: 1}).Querier(s.From.UnixMilli(), s.To.UnixMilli())
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	return read(ctx, r, sets)
}

// matchers parses series selectors.
func (e *Engine) matchers(match []string) ([][]*labels.Matcher, error) {
	if err := weight.Check(weight.Query, "the request has %d series selectors", len(match), maxSelectors, "use fewer"); err != nil {
		return nil, tooHeavy(LimitLength, err)
	}
	text := strings.Join(match, "\n")
	err := weight.Check(weight.Query, "the series selectors have %d bytes", len(text)-max(0, len(match)-1), e.cfg.MaxLength, "use fewer")
	if err == nil {
		err = queries.TextOf(text).Weigh(e.cfg.MaxDepth)
	}
	if err != nil {
		return nil, e.cfg.Programs.Note(tooHeavy(LimitLength, err))
	}
	sets, err := e.parser.ParseMetricSelectors(match)
	if err != nil {
		return nil, &SyntaxError{err}
	}
	return sets, nil
}

// Format returns a query in Prometheus's own formatting. The error is a *LimitError or
// a *SyntaxError.
func (e *Engine) Format(ctx context.Context, q Query) (text string, err error) {
	err = e.inTurn(ctx, e.payerOf(q), func() error {
		if _, err := e.check(q.PromQL, span{}); err != nil {
			return err
		}
		expr, err := e.parser.ParseExpr(q.PromQL)
		if err != nil {
			return &SyntaxError{err}
		}
		text = expr.Pretty(0)
		return nil
	})
	return text, err
}

// Selectors checks a query as Instant does, and returns the matchers of each of its
// selectors.
func (e *Engine) Selectors(text string) ([][]*labels.Matcher, error) {
	if _, err := e.check(text, span{}); err != nil {
		return nil, err
	}
	expr, err := e.parser.ParseExpr(text)
	if err != nil {
		return nil, &SyntaxError{err}
	}
	return parser.ExtractSelectors(expr), nil
}
