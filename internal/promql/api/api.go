// SPDX-License-Identifier: Apache-2.0

// Package api serves Prometheus's HTTP API for queries, as data source for Grafana,
// promtool and Prometheus's client libraries. A viewer sees the series of the namespaces
// that the viewer may read.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// Engine evaluates queries. *engine.Engine is one.
type Engine interface {
	Instant(ctx context.Context, q engine.Query, at time.Time) (parser.Value, annotations.Annotations, error)
	Range(ctx context.Context, q engine.Query, from, to time.Time, step time.Duration) (promql.Matrix, annotations.Annotations, error)
	Series(ctx context.Context, q engine.Query, s engine.Selection) ([]labels.Labels, annotations.Annotations, error)
	LabelNames(ctx context.Context, q engine.Query, s engine.Selection) ([]string, annotations.Annotations, error)
	LabelValues(ctx context.Context, q engine.Query, name string, s engine.Selection) ([]string, annotations.Annotations, error)
	Format(ctx context.Context, q engine.Query) (string, error)
}

// Viewer is who sends a request.
type Viewer struct {
	// Namespaces are those that the viewer may read; nil: all.
	Namespaces []string
	// Payer is who pays for the queries. Zero: the one of Namespaces with the fewest queries.
	Payer fair.Payer
	// Unknown is the number of namespaces whose rights are not known yet. The answer
	// has a warning.
	Unknown int
}

// Deps are the collaborators of an API.
type Deps struct {
	Engine Engine
	// Guard authenticates requests, and calls next with their viewer.
	Guard func(next func(w http.ResponseWriter, r *http.Request, v Viewer)) http.HandlerFunc
	// Metadata describes a metric by the name of its family. Pages may describe it
	// differently; a viewer sees what the pages of the viewer's namespaces say. nil: no
	// metric is known.
	Metadata func(v Viewer, family string) []Metadata
	Window   time.Duration // how far back metrics count as present; 10 min
	// Rules returns the groups of recording rules that a viewer may see. nil: none.
	Rules   func(v Viewer) []RuleGroup
	Version string
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger
}

// The bounds of answers.
const (
	// maxAnswer bounds one answer, in bytes of JSON.
	maxAnswer = 32 << 20
	// maxAnswers bounds the answers that are in memory at the same time, because
	// clients read slowly.
	maxAnswers = 96 << 20
	// maxForm bounds the body of a request.
	maxForm = 64 << 10
)

// API serves the HTTP API.
type API struct {
	deps    Deps
	answers answers
}

// New makes an API.
func New(deps Deps) *API {
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Metadata == nil {
		deps.Metadata = func(Viewer, string) []Metadata { return nil }
	}
	deps.Window = cmp.Or(deps.Window, 10*time.Minute)
	return &API{deps: deps, answers: answers{by: map[fair.Payer]int64{}}}
}

// Register adds the routes to a mux. They are Prometheus's, below /api/v1/.
func (a *API) Register(mux *http.ServeMux) {
	handle := func(serve endpoint, patterns ...string) {
		for _, p := range patterns {
			mux.HandleFunc(p, a.handler(serve))
		}
	}
	handle(a.query, "GET /api/v1/query", "POST /api/v1/query")
	handle(a.queryRange, "GET /api/v1/query_range", "POST /api/v1/query_range")
	handle(empty, "GET /api/v1/query_exemplars", "POST /api/v1/query_exemplars")
	handle(a.format, "GET /api/v1/format_query", "POST /api/v1/format_query")
	handle(a.labelNames, "GET /api/v1/labels", "POST /api/v1/labels")
	handle(a.series, "GET /api/v1/series", "POST /api/v1/series")
	handle(a.labelValues, "GET /api/v1/label/{name}/values")
	handle(a.metadata, "GET /api/v1/metadata")
	handle(a.rules, "GET /api/v1/rules")
	handle(alerts, "GET /api/v1/alerts")
	handle(a.buildInfo, "GET /api/v1/status/buildinfo")
}

// endpoint answers one request with data, which is a value that appendData knows.
type endpoint func(r *http.Request, v Viewer) (data any, notes annotations.Annotations, err error)

// handler returns the handler of an endpoint: guarded, and with Prometheus's envelope.
func (a *API) handler(serve endpoint) http.HandlerFunc {
	return a.deps.Guard(func(w http.ResponseWriter, r *http.Request, v Viewer) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			a.sendError(w, badData("error parsing form values: %w", err))
			return
		}
		data, notes, err := serve(r, v)
		if err != nil {
			a.sendError(w, err)
			return
		}
		switch {
		case v.Unknown > 0:
			notes = notes.Add(fmt.Errorf("the rights of %d namespaces are not known yet, so their series are left out: repeat the query", v.Unknown))
		case v.Namespaces != nil && len(v.Namespaces) == 0:
			notes = notes.Add(errors.New("the token's owner may see the series of no namespace: that needs the right to get gpuautoscalers.gpupilot.dev in it"))
		}
		a.send(w, v, r.FormValue("query"), data, notes)
	})
}

// send encodes an answer and writes it.
func (a *API) send(w http.ResponseWriter, v Viewer, query string, data any, notes annotations.Annotations) {
	size, payer := min(estimate(data), maxAnswer), v.payer()
	if !a.answers.take(payer, size) {
		a.sendError(w, errBusy)
		return
	}
	defer a.answers.put(payer, size)
	body, err := appendAnswer(make([]byte, 0, min(size, 1<<16)), query, data, notes)
	if err != nil {
		a.sendError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // an error means that the client has disconnected
}

// payer returns whose share of the memory an answer uses.
func (v *Viewer) payer() fair.Payer {
	switch {
	case v.Payer != (fair.Payer{}):
		return v.Payer
	case len(v.Namespaces) > 0:
		return fair.Namespace(v.Namespaces[0])
	}
	return engine.AllNamespaces
}

// answers is the memory of the answers that are being sent. A payer may have half of what
// the others leave, so that there is always room for one that has none.
type answers struct {
	mu    sync.Mutex
	total int64
	by    map[fair.Payer]int64
}

func (a *answers) take(payer fair.Payer, size int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := maxAnswers - (a.total - a.by[payer])
	if a.by[payer]+size > left/2 {
		return false
	}
	a.total += size
	a.by[payer] += size
	return true
}

func (a *answers) put(payer fair.Payer, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total -= size
	if a.by[payer] -= size; a.by[payer] == 0 {
		delete(a.by, payer)
	}
}

// errBusy is the error of a request while too many answers are in memory.
var errBusy = &apiError{kind: "unavailable", status: http.StatusServiceUnavailable, err: errors.New("too many large answers are being sent; try again later")}

// apiError is an error with its place in Prometheus's API.
type apiError struct {
	kind   string // errorType
	status int
	err    error
}

// Error implements error.
func (e *apiError) Error() string { return e.err.Error() }

// Unwrap returns the cause, for errors.Is and errors.As.
func (e *apiError) Unwrap() error { return e.err }

func badData(format string, args ...any) error {
	return &apiError{kind: "bad_data", status: http.StatusBadRequest, err: fmt.Errorf(format, args...)}
}

// classify returns the place of an error of the engine in Prometheus's API.
func classify(err error) *apiError {
	if e, ok := errors.AsType[*apiError](err); ok {
		return e
	}
	if _, ok := errors.AsType[*engine.SyntaxError](err); ok {
		return &apiError{kind: "bad_data", status: http.StatusBadRequest, err: fmt.Errorf(`invalid parameter "query": %w`, err)}
	}
	if l, ok := errors.AsType[*engine.LimitError](err); ok {
		switch l.Limit {
		case engine.LimitLength, engine.LimitSteps:
			return &apiError{kind: "bad_data", status: http.StatusBadRequest, err: err}
		case engine.LimitSlots:
			return &apiError{kind: "unavailable", status: http.StatusServiceUnavailable, err: err}
		}
		return &apiError{kind: "execution", status: http.StatusUnprocessableEntity, err: err}
	}
	var (
		canceled promql.ErrQueryCanceled
		late     promql.ErrQueryTimeout
	)
	_, stored := errors.AsType[*engine.StorageError](err)
	switch {
	case errors.As(err, &canceled), errors.Is(err, context.Canceled):
		return &apiError{kind: "canceled", status: statusClientClosed, err: err}
	case errors.As(err, &late):
		return &apiError{kind: "timeout", status: http.StatusServiceUnavailable, err: err}
	case stored:
		return &apiError{kind: "internal", status: http.StatusInternalServerError, err: err}
	}
	return &apiError{kind: "execution", status: http.StatusUnprocessableEntity, err: err}
}

// statusClientClosed is the status that Prometheus uses for a query whose client has
// disconnected.
const statusClientClosed = 499

func (a *API) sendError(w http.ResponseWriter, err error) {
	e := classify(err)
	w.Header().Set("Content-Type", "application/json")
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(e.status)
	_, _ = w.Write(appendError(nil, e.kind, e.Error()))
}

// buildInfo is what Grafana reads the version of Prometheus from: that of the engine.
func (a *API) buildInfo(*http.Request, Viewer) (any, annotations.Annotations, error) {
	return map[string]string{
		"version": engineVersion, "revision": "gpupilot-" + a.deps.Version, "branch": "", "buildUser": "", "buildDate": "", "goVersion": runtime.Version(),
	}, nil, nil
}

// engineVersion is the release of Prometheus whose engine runs the queries.
const engineVersion = "3.15.0"
