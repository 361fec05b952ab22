// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// stub answers each request alike, and remembers what it was asked.
type stub struct {
	err       error
	value     parser.Value
	matrix    promql.Matrix
	query     engine.Query
	at        time.Time
	from, to  time.Time
	step      time.Duration
	selection engine.Selection
	name      string
}

func (s *stub) Instant(_ context.Context, q engine.Query, at time.Time) (parser.Value, annotations.Annotations, error) {
	s.query, s.at = q, at
	return s.value, nil, s.err
}

func (s *stub) Range(_ context.Context, q engine.Query, from, to time.Time, step time.Duration) (promql.Matrix, annotations.Annotations, error) {
	s.query, s.from, s.to, s.step = q, from, to, step
	return s.matrix, nil, s.err
}

func (s *stub) Series(_ context.Context, q engine.Query, x engine.Selection) ([]labels.Labels, annotations.Annotations, error) {
	s.query, s.selection = q, x
	return nil, nil, s.err
}

func (s *stub) LabelNames(_ context.Context, q engine.Query, x engine.Selection) ([]string, annotations.Annotations, error) {
	s.query, s.selection = q, x
	return nil, nil, s.err
}

func (s *stub) LabelValues(_ context.Context, q engine.Query, name string, x engine.Selection) ([]string, annotations.Annotations, error) {
	s.query, s.name, s.selection = q, name, x
	return []string{"up"}, nil, s.err
}

func (s *stub) Format(context.Context, engine.Query) (string, error) { return "", s.err }

// ask sends a request of a viewer of one namespace to an API over the stub.
func (s *stub) ask(path string) *httptest.ResponseRecorder {
	mux := http.NewServeMux()
	New(Deps{Engine: s, Now: func() time.Time { return base }, Guard: func(next func(http.ResponseWriter, *http.Request, Viewer)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			next(w, r, Viewer{Namespaces: []string{"team-a"}})
		}
	}}).Register(mux)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/"+path, http.NoBody))
	return w
}

// endpoints are requests that reach the engine.
var endpoints = []string{"query?query=x", "query_range?query=x&start=1&end=2&step=1", "series?match[]=x", "labels", "label/pod/values", "metadata", "format_query?query=x"}

// Each error has its place in Prometheus's API, at each endpoint.
func TestErrors(t *testing.T) {
	f := func(err error, status int, kind, text string) {
		t.Helper()
		for _, path := range endpoints {
			w := (&stub{err: err}).ask(path)
			var got struct{ Status, ErrorType, Error string }
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			retry := w.Header().Get("Retry-After") != ""
			if w.Code != status || got.Status != "error" || got.ErrorType != kind || got.Error != text || retry != (status == http.StatusServiceUnavailable) {
				t.Errorf("%v at %s: %d, retry %v, %+v; want %d %s %q", err, path, w.Code, retry, got, status, kind, text)
			}
		}
	}
	limit := func(l engine.Limit) error { return fmt.Errorf("read: %w", &engine.LimitError{Limit: l}) }
	f(limit(engine.LimitLength), 400, "bad_data", "read: ")
	f(limit(engine.LimitSteps), 400, "bad_data", "read: ")
	f(limit(engine.LimitSlots), 503, "unavailable", "read: ")
	f(limit(engine.LimitSeries), 422, "execution", "read: ")
	f(limit(engine.LimitMemory), 422, "execution", "read: ")
	f(promql.ErrTooManySamples("query execution"), 422, "execution", "query processing would load too many samples into memory in query execution")
	f(promql.ErrQueryTimeout("query execution"), 503, "timeout", "query timed out in query execution")
	f(promql.ErrQueryCanceled("query queue"), 499, "canceled", "query was canceled in query queue")
	f(fmt.Errorf("wait: %w", context.Canceled), 499, "canceled", "wait: context canceled")
	f(fmt.Errorf("expanding series: %w", &engine.StorageError{Err: errors.New("disk")}), 500, "internal", "expanding series: disk")
	f(errors.New("odd <result>"), 422, "execution", "odd <result>")
	f(fmt.Errorf("send: %w", errBusy), 503, "unavailable", errBusy.Error())
	if e := badData("form: %w", context.Canceled); !errors.Is(e, context.Canceled) {
		t.Errorf("%v hides its cause", e)
	}
	if w := (&stub{value: strange{}}).ask("query?query=x"); w.Code != 422 {
		t.Errorf("a value that cannot be encoded: %d %s", w.Code, w.Body)
	}
}

// strange is a value that Prometheus's API does not have.
type strange struct{}

func (strange) Type() parser.ValueType { return "strange" }
func (strange) String() string         { return "" }

// A wrong parameter is named, and reaches no engine.
func TestWrongParameters(t *testing.T) {
	f := func(path, parameter string) {
		t.Helper()
		s := &stub{}
		w := s.ask(path)
		var got struct{ ErrorType, Error string }
		_ = json.Unmarshal(w.Body.Bytes(), &got)
		if want := fmt.Sprintf("invalid parameter %q: ", parameter); w.Code != 400 || got.ErrorType != "bad_data" || len(got.Error) < len(want) || got.Error[:len(want)] != want || s.query.Payer != (fair.Payer{}) {
			t.Errorf("%s: %d %+v, payer %q", path, w.Code, got, s.query.Payer)
		}
	}
	const span = "query_range?query=x&start=1&end=2&step=1"
	for _, bad := range []string{"x", "NaN", "1e30", "2026-13-01T00:00:00Z"} {
		f("query?query=x&time="+bad, "time")
		f("query_range?query=x&end=2&step=1&start="+bad, "start")
		f("query_range?query=x&start=1&step=1&end="+bad, "end")
		f("labels?start="+bad, "start")
		f("label/pod/values?end="+bad, "end")
	}
	for _, bad := range []string{"x", "NaN", "1e30", "1y2", "-1e10"} {
		f("query?query=x&timeout="+bad, "timeout")
		f("query?query=x&lookback_delta="+bad, "lookback_delta")
		f("query_range?query=x&start=1&end=2&step="+bad, "step")
		f(span+"&timeout="+bad, "timeout")
	}
	for _, bad := range []string{"x", "-1", "1.5"} {
		f("query?query=x&limit="+bad, "limit")
		f(span+"&limit="+bad, "limit")
		f("series?match[]=x&limit="+bad, "limit")
		f("metadata?limit="+bad, "limit")
		f("metadata?limit_per_metric="+bad, "limit_per_metric")
	}
	for _, missing := range []string{"start", "end", "step"} {
		all := url.Values{"query": {"x"}, "start": {"1"}, "end": {"2"}, "step": {"1"}}
		all.Del(missing)
		f("query_range?"+all.Encode(), missing)
	}
	if w := (&stub{}).ask("label/%FF/values"); w.Code != 400 {
		t.Errorf("the name of a label that is no UTF-8: %d %s", w.Code, w.Body)
	}
}

// What a request asks reaches the engine, with its viewer.
func TestParameters(t *testing.T) {
	s := &stub{value: promql.Vector{}}
	check := func(what string, got, want any) {
		t.Helper()
		if a, b := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want); a != b {
			t.Errorf("%s: %s, want %s", what, a, b)
		}
	}
	viewer := engine.Query{Namespaces: []string{"team-a"}}
	full := viewer
	full.PromQL, full.Timeout, full.Lookback = "x", 1500*time.Millisecond, time.Minute
	s.ask("query?query=x&timeout=1.5&lookback_delta=1m&time=-1.25")
	check("query", s.query, full)
	check("its time", s.at.UnixMilli(), -1250)
	s.ask("query?query=x")
	check("no time", s.at, base)
	s.ask("query_range?query=x&timeout=1500ms&lookback_delta=60&start=1969-12-31T23:59:59.5Z&end=1.0015&step=2m")
	check("range", s.query, full)
	check("its times", []any{s.from.UnixMilli(), s.to.UnixMilli(), s.step}, []any{-500, 1002, 2 * time.Minute})
	s.ask("series?match[]=a&match[]=b&start=1&end=2&limit=3")
	check("series", []any{s.query, s.selection.Match, s.selection.From.Unix(), s.selection.To.Unix(), s.selection.Limit}, []any{viewer, []string{"a", "b"}, 1, 2, 3})
	s.ask("labels")
	check("all of time", []any{s.selection.From, s.selection.To}, []any{minTime, maxTime})
	s.ask("labels?start=" + url.QueryEscape(minTime.Format(time.RFC3339Nano)) + "&end=" + url.QueryEscape(maxTime.Format(time.RFC3339Nano)))
	check("all of time, as Prometheus's client says it", []any{s.selection.From, s.selection.To}, []any{minTime, maxTime})
	s.ask("label/U__my_2e_label/values")
	check("an escaped name", s.name, "my.label")
	check("a metric without metadata", s.ask("metadata").Body, `{"status":"success","data":{}}`)
	check("metadata", []any{s.query, s.name, s.selection.From, s.selection.To}, []any{viewer, "__name__", base.Add(-10 * time.Minute), base})
}

// A limit cuts, says so, and never adds.
func TestTruncate(t *testing.T) {
	f := func(limit string, series int, cut bool) {
		t.Helper()
		s := &stub{}
		for i := range 3 {
			l := labels.FromStrings("i", fmt.Sprint(i))
			s.matrix = append(s.matrix, promql.Series{Metric: l, Floats: []promql.FPoint{{T: 1}}})
			s.value = append(vectorOf(s.value), promql.Sample{Metric: l})
		}
		for _, path := range []string{"query?query=x", "query_range?query=x&start=1&end=2&step=1"} {
			var got struct {
				Data     struct{ Result []any }
				Warnings []string
			}
			if err := json.Unmarshal(s.ask(path+"&limit="+limit).Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Data.Result) != series || (len(got.Warnings) > 0) != cut {
				t.Errorf("%s with the limit %s: %d series, warnings %q", path, limit, len(got.Data.Result), got.Warnings)
			}
		}
	}
	f("", 3, false)
	f("0", 3, false)
	f("4", 3, false)
	f("3", 3, false)
	f("2", 2, true)
	f("1", 1, true)
}

func vectorOf(v parser.Value) promql.Vector {
	x, _ := v.(promql.Vector)
	return x
}
