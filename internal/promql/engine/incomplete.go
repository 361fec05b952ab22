// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// Incomplete is series of a metric that are absent now, because they would show less load
// than there is. A query that selects some of them has a warning: what it makes of the
// others would show less load too. Complete drops that.
type Incomplete struct {
	Metric string
	Labels labels.Labels // that the absent series have; they can have more
	Why    string
}

// Error implements error: it is the warning.
func (x *Incomplete) Error() string {
	return fmt.Sprintf("%s%s is absent, because it could look like less load: %s", x.Metric, x.Labels, x.Why)
}

// isSelected reports whether matchers can select the absent series.
func (x *Incomplete) isSelected(matchers []*labels.Matcher) bool {
	return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool {
		switch {
		case m.Name == model.MetricNameLabel:
			return !m.Matches(x.Metric)
		case !x.Labels.Has(m.Name):
			return false // they may have any value
		}
		return !m.Matches(x.Labels.Get(m.Name))
	})
}

// isIn reports whether the absent series can be part of a result: no label of it says
// otherwise.
func (x *Incomplete) isIn(result labels.Labels) bool {
	differs := false
	x.Labels.Range(func(l labels.Label) {
		v := result.Get(l.Name)
		differs = differs || v != "" && v != l.Value
	})
	return !differs
}

// incompleteOf returns what is absent of the metrics that a query may read.
func (e *Engine) incompleteOf(q Query) []Incomplete {
	if e.cfg.Incomplete == nil {
		return nil
	}
	all := e.cfg.Incomplete()
	if q.Namespaces == nil {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(x Incomplete) bool {
		return !slices.Contains(q.Namespaces, x.Labels.Get(e.cfg.Label))
	})
}

// IncompleteIn returns what the series that a query read lack, from the query's
// annotations, in a fixed order.
func IncompleteIn(notes annotations.Annotations) (out []*Incomplete) {
	for _, text := range slices.Sorted(maps.Keys(notes)) {
		if x, ok := errors.AsType[*Incomplete](notes[text]); ok {
			out = append(out, x)
		}
	}
	return out
}

// Complete returns a result without the parts that absent series could raise, and one of
// the reasons; nil if nothing was dropped. An empty result lacks them too.
func Complete(v parser.Value, notes annotations.Annotations) (parser.Value, error) {
	absent := IncompleteIn(notes)
	if len(absent) == 0 {
		return v, nil
	}
	vector, ok := v.(promql.Vector)
	if !ok || len(vector) == 0 {
		return promql.Vector{}, absent[0]
	}
	var why error
	kept := make(promql.Vector, 0, len(vector))
	for _, s := range vector {
		i := slices.IndexFunc(absent, func(x *Incomplete) bool { return x.isIn(s.Metric) })
		if i < 0 {
			kept = append(kept, s)
		} else {
			why = absent[i]
		}
	}
	return kept, why
}
