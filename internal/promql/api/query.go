// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// errTruncated is Prometheus's warning of an answer that the parameter limit cuts.
var errTruncated = errors.New("results truncated due to limit")

func (a *API) query(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	at, err := timeParam(r, "time", a.deps.Now())
	if err != nil {
		return nil, nil, err
	}
	limit, err := countParam(r, "limit")
	if err != nil {
		return nil, nil, err
	}
	q, err := queryParams(r, v)
	if err != nil {
		return nil, nil, err
	}
	value, notes, err := a.deps.Engine.Instant(r.Context(), q, at)
	if err != nil {
		return nil, nil, err
	}
	value, cut := truncate(value, limit)
	if cut {
		notes = notes.Add(errTruncated)
	}
	return value, notes, nil
}

func (a *API) queryRange(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	from, err := timeParam(r, "start", time.Time{})
	if err != nil {
		return nil, nil, err
	}
	to, err := timeParam(r, "end", time.Time{})
	if err != nil {
		return nil, nil, err
	}
	step, err := durationParam(r, "step", 0)
	if err != nil {
		return nil, nil, err
	}
	limit, err := countParam(r, "limit")
	if err != nil {
		return nil, nil, err
	}
	for _, required := range []string{"start", "end", "step"} {
		if r.FormValue(required) == "" {
			return nil, nil, badData(`invalid parameter %q: cannot parse "" to a valid value`, required)
		}
	}
	q, err := queryParams(r, v)
	if err != nil {
		return nil, nil, err
	}
	matrix, notes, err := a.deps.Engine.Range(r.Context(), q, from, to, step)
	if err != nil {
		return nil, nil, err
	}
	value, cut := truncate(matrix, limit)
	if cut {
		notes = notes.Add(errTruncated)
	}
	return value, notes, nil
}

// truncate cuts a value to a number of series; 0: all.
func truncate(v parser.Value, limit int) (parser.Value, bool) {
	switch v := v.(type) {
	case promql.Vector:
		if limit > 0 && len(v) > limit {
			return v[:limit], true
		}
	case promql.Matrix:
		if limit > 0 && len(v) > limit {
			return v[:limit], true
		}
	}
	return v, false
}

// format answers with the query in Prometheus's own formatting.
func (a *API) format(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	q := queryOf(v)
	q.PromQL = r.FormValue("query")
	text, err := a.deps.Engine.Format(r.Context(), q)
	return text, nil, err
}

func (a *API) series(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	s, err := a.selection(r)
	if err != nil {
		return nil, nil, err
	}
	if len(s.Match) == 0 {
		return nil, nil, badData("no match[] parameter provided")
	}
	out, notes, err := a.deps.Engine.Series(r.Context(), queryOf(v), s)
	return out, notes, err
}

func (a *API) labelNames(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	s, err := a.selection(r)
	if err != nil {
		return nil, nil, err
	}
	out, notes, err := a.deps.Engine.LabelNames(r.Context(), queryOf(v), s)
	return nonNil(out), notes, err
}

func (a *API) labelValues(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	name := r.PathValue("name")
	if strings.HasPrefix(name, "U__") {
		name = model.UnescapeName(name, model.ValueEncodingEscaping)
	}
	if !model.UTF8Validation.IsValidLabelName(name) {
		return nil, nil, badData("invalid label name: %q", name)
	}
	s, err := a.selection(r)
	if err != nil {
		return nil, nil, err
	}
	out, notes, err := a.deps.Engine.LabelValues(r.Context(), queryOf(v), name, s)
	return nonNil(out), notes, err
}

// nonNil is s, so that it is encoded as an array.
func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// queryOf is a query without text: reading labels.
func queryOf(v Viewer) engine.Query { return engine.Query{Namespaces: v.Namespaces, Payer: v.Payer} }

// selection reads the parameters match[], start, end and limit.
func (a *API) selection(r *http.Request) (s engine.Selection, err error) {
	if s.From, err = timeParam(r, "start", minTime); err != nil {
		return s, err
	}
	if s.To, err = timeParam(r, "end", maxTime); err != nil {
		return s, err
	}
	if s.Limit, err = countParam(r, "limit"); err != nil {
		return s, err
	}
	s.Match = r.Form["match[]"]
	return s, nil
}

// queryParams reads the parameters query, timeout and lookback_delta.
func queryParams(r *http.Request, v Viewer) (q engine.Query, err error) {
	q = queryOf(v)
	q.PromQL = r.FormValue("query")
	if q.Timeout, err = durationParam(r, "timeout", 0); err != nil {
		return q, err
	}
	if q.Lookback, err = durationParam(r, "lookback_delta", 0); err != nil {
		return q, err
	}
	return q, nil
}

// The times that stand for no bound, as in Prometheus.
var (
	minTime = time.Unix(math.MinInt64/1000+62135596801, 0).UTC()
	maxTime = time.Unix(math.MaxInt64/1000-62135596801, 999999999).UTC()
)

// timeParam reads a time: seconds since 1970, or RFC 3339.
func timeParam(r *http.Request, name string, missing time.Time) (time.Time, error) {
	s := r.FormValue(name)
	if s == "" {
		return missing, nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && !math.IsNaN(f) && math.Abs(f) < maxSeconds {
		seconds, fraction := math.Modf(f)
		return time.Unix(int64(seconds), int64(math.Round(fraction*1000)*1e6)).UTC(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t, nil
	}
	for _, bound := range []time.Time{minTime, maxTime} { // Prometheus's own clients send them
		if s == bound.Format(time.RFC3339Nano) {
			return bound, nil
		}
	}
	return time.Time{}, badData("invalid parameter %q: cannot parse %q to a valid timestamp", name, shown(s))
}

// maxSeconds bounds times in seconds: larger ones overflow milliseconds.
const maxSeconds = math.MaxInt64 / 1000 / 2

// durationParam reads a duration: seconds, or Prometheus's notation, such as 5m.
func durationParam(r *http.Request, name string, missing time.Duration) (time.Duration, error) {
	s := r.FormValue(name)
	if s == "" {
		return missing, nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil {
		if ns := f * float64(time.Second); ns > math.MinInt64 && ns < math.MaxInt64 {
			return time.Duration(ns), nil
		}
	} else if d, err := model.ParseDuration(s); err == nil {
		return time.Duration(d), nil
	}
	return 0, badData("invalid parameter %q: cannot parse %q to a valid duration", name, shown(s))
}

// countParam reads a parameter with a number of results; 0: no limit.
func countParam(r *http.Request, name string) (int, error) {
	s := r.FormValue(name)
	if s == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return 0, badData("invalid parameter %q: %q is not a number that is zero or positive", name, shown(s))
	}
	return n, nil
}

// shown returns the part of a parameter that an error shows.
func shown(s string) string { return excerpt.Of(s, 80) }

// empty answers without results.
func empty(*http.Request, Viewer) (any, annotations.Annotations, error) { return []string{}, nil, nil }

// alerts answers without alerts: alerting rules are not evaluated.
func alerts(*http.Request, Viewer) (any, annotations.Annotations, error) {
	return map[string][]string{"alerts": {}}, nil, nil
}
