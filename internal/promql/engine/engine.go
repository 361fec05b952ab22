// SPDX-License-Identifier: Apache-2.0

// Package engine runs Prometheus's own PromQL engine over any storage, with limits
// of time, samples, memory and concurrency for each query, and with a fair share of the
// slots for each payer. Namespaces are enforced in the storage: a query reads only the
// series that its namespaces allow, whatever its text says.
package engine

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
)

// Config holds the settings of an Engine. Zero values mean the defaults.
type Config struct {
	Timeout     time.Duration // of one query, waiting included unless it is Reserved; 30 s
	MaxSamples  int           // that a query holds at the same time; 5,000,000
	MaxSeries   int           // that all selectors of a query read; 500,000
	MaxBytes    int64         // of the labels of those series, estimated; 256 MiB
	MaxSteps    int           // of a range; 11,000, as in Prometheus
	MaxLength   int           // of the query's text in bytes; 16 KiB
	MaxDepth    int           // of nested expressions; 64
	Concurrency int           // queries that run at the same time; 2
	// Reserved are further slots, which only queries with Query.Reserved use: recording
	// rules and signals never wait for dashboards. nil: those of queries.ForWindows.
	Reserved *fair.Slots
	// Lookback is the age at which a series without a new sample ends; 5 min.
	Lookback time.Duration
	// SubqueryStep is the step of a subquery that gives none; 1 min.
	SubqueryStep time.Duration
	// Label is the label with the namespace of a series; "namespace".
	Label string
	// Want is called with the metrics that a payer's query names, before it runs, and with the namespaces that it reads,
	// sorted; nil: all. Want nil: none.
	Want func(payer fair.Payer, namespaces []string, metrics ...string)
	// Incomplete returns the series that are absent now because they would show less load
	// than there is; it is called for each query. nil: none.
	Incomplete func() []Incomplete
	// Narrow returns a query with the same result that reads fewer series; nil: none.
	// visible has the series that the query may read. A query is checked before, and its
	// limits hold for the narrowed one.
	Narrow func(ctx context.Context, visible storage.Queryable, promql string, from, to time.Time) (string, error)
	Log    *slog.Logger // nil: none
	// Programs counts the queries that are refused for their weight; may be nil.
	Programs *weight.Counts
}

func (c *Config) complete() {
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.MaxSamples = cmp.Or(c.MaxSamples, MaxSamples(0, false))
	c.MaxSeries = cmp.Or(c.MaxSeries, 500_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxSteps = cmp.Or(c.MaxSteps, 11_000)
	c.MaxLength = cmp.Or(c.MaxLength, 16<<10)
	c.MaxDepth = cmp.Or(c.MaxDepth, 64)
	c.Concurrency = cmp.Or(c.Concurrency, 2)
	if c.Reserved == nil {
		c.Reserved = fair.NewSlots(queries.ForWindows())
	}
	c.Lookback = cmp.Or(c.Lookback, 5*time.Minute)
	c.SubqueryStep = cmp.Or(c.SubqueryStep, time.Minute)
	c.Label = cmp.Or(c.Label, "namespace")
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

// Query is what to evaluate, for whom.
type Query struct {
	PromQL string
	// Namespaces are those whose series the query reads. nil: all series, also those
	// without a namespace; empty: none.
	Namespaces []string
	// Payer is whose share of the slots the query uses. It appears on /metrics if the query is limited. Zero: that of
	// Namespaces with the fewest queries, or AllNamespaces.
	Payer fair.Payer
	// Reserved queries use the slots that are kept for rules and signals.
	Reserved bool
	// HasSlot says that the caller holds a slot, so that the query waits for none.
	HasSlot bool
	// Timeout and Lookback are used instead of the engine's, if they are shorter or,
	// for Lookback, not zero. Timeout does not count the time that the query waits.
	Timeout  time.Duration
	Lookback time.Duration
}

// Engine evaluates PromQL. It is safe for concurrent use.
type Engine struct {
	cfg      Config
	storage  storage.Queryable
	parser   parser.Parser
	engine   *promql.Engine
	slots    *fair.Slots
	reserved *fair.Slots
	checks   *fair.Slots // of texts that are parsed, before their queries wait
	meters   *meters
	logged   atomic.Int64 // the last line about the storage, ns since 1970
}

// New makes an Engine over a storage.
func New(cfg Config, q storage.Queryable) *Engine {
	cfg.complete()
	e := &Engine{
		cfg: cfg, storage: q, parser: parser.NewParser(parser.Options{}),
		slots: fair.NewSlots(fair.Config{Slots: cfg.Concurrency}), reserved: cfg.Reserved, meters: newMeters(),
		checks: fair.NewSlots(fair.Config{Slots: maxChecks, Share: maxChecks / 4}),
	}
	e.engine = promql.NewEngine(promql.EngineOpts{
		Logger: cfg.Log, MaxSamples: cfg.MaxSamples, Timeout: cfg.Timeout, LookbackDelta: cfg.Lookback,
		NoStepSubqueryIntervalFn: func(int64) int64 { return cfg.SubqueryStep.Milliseconds() },
		EnableAtModifier:         true, EnableNegativeOffset: true, Parser: e.parser,
	})
	return e
}

// Instant evaluates a query at one time. The error is a *LimitError, a *SyntaxError, or
// one of package promql.
func (e *Engine) Instant(ctx context.Context, q Query, at time.Time) (parser.Value, annotations.Annotations, error) {
	return e.run(ctx, q, span{from: at, to: at}, func(ctx context.Context, s storage.Queryable) (promql.Query, error) {
		return e.engine.NewInstantQuery(ctx, s, e.opts(q), e.narrow(ctx, q, at, at), at)
	})
}

// Range evaluates a query at every step from one time to another, both included. Its
// errors are those of Instant.
func (e *Engine) Range(ctx context.Context, q Query, from, to time.Time, step time.Duration) (promql.Matrix, annotations.Annotations, error) {
	v, notes, err := e.run(ctx, q, span{from: from, to: to, step: step, isRange: true}, func(ctx context.Context, s storage.Queryable) (promql.Query, error) {
		return e.engine.NewRangeQuery(ctx, s, e.opts(q), e.narrow(ctx, q, from, to), from, to, step)
	})
	m, _ := v.(promql.Matrix)
	return m, notes, err
}

// narrow returns a query with the same result that reads fewer series, if it can.
func (e *Engine) narrow(ctx context.Context, q Query, from, to time.Time) string {
	if e.cfg.Narrow == nil {
		return q.PromQL
	}
	narrowed, err := e.cfg.Narrow(ctx, Only(e.storage, e.cfg.Label, q.Namespaces), q.PromQL, from, to)
	if err != nil {
		return q.PromQL // the evaluation reports the error
	}
	return narrowed
}

func (e *Engine) opts(q Query) promql.QueryOpts {
	return promql.NewPrometheusQueryOpts(false, q.Lookback)
}

// run checks a query, waits for a slot and evaluates it.
func (e *Engine) run(ctx context.Context, q Query, s span, prepare func(context.Context, storage.Queryable) (promql.Query, error)) (v parser.Value, notes annotations.Annotations, err error) {
	began := time.Now()
	q.Payer = e.payerOf(q)
	defer func() {
		err = e.contain(recover(), q, err)
		e.meters.observe(q, time.Since(began), err)
	}()
	var plan plan
	if err := e.inTurn(ctx, q.Payer, func() (err error) { plan, err = e.check(q.PromQL, s); return err }); err != nil {
		return nil, nil, err
	}
	if e.cfg.Want != nil && len(plan.names) > 0 {
		var of []string
		if q.Namespaces != nil {
			of = append(make([]string, 0, len(q.Namespaces)), q.Namespaces...)
			slices.Sort(of)
		}
		e.cfg.Want(q.Payer, of, plan.names...)
	}
	ctx, release, err := e.acquire(ctx, q)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	x, err := prepare(ctx, e.limit(q, plan))
	if err != nil {
		return nil, nil, &SyntaxError{err}
	}
	defer x.Close()
	r := x.Exec(ctx)
	if r.Err != nil {
		return nil, r.Warnings, unwrapReading(r.Err)
	}
	return detach(r.Value), r.Warnings, nil
}

// contain returns the error of a query that panicked, or err. recovered is the value
// of the panic; nil for none. It logs what only the operator may read.
func (e *Engine) contain(recovered any, q Query, err error) error {
	if recovered == nil {
		e.logStorage(err)
		return err
	}
	e.cfg.Log.Error("query panicked", "promql", q.PromQL, "panic", recovered, "stack", string(debug.Stack()))
	return errPanicked
}

// logEvery is the shortest time between two lines of the log about the storage. Signals
// are evaluated each second.
const logEvery = time.Minute

func (e *Engine) logStorage(err error) {
	s, ok := errors.AsType[*StorageError](err)
	if !ok {
		return
	}
	now, last := time.Now().UnixNano(), e.logged.Load()
	if now-last >= int64(logEvery) && e.logged.CompareAndSwap(last, now) {
		e.cfg.Log.Warn("the series of a query cannot be read", "err", s)
	}
}

func (e *Engine) timeout(q Query) time.Duration {
	if q.Timeout > 0 {
		return min(e.cfg.Timeout, q.Timeout)
	}
	return e.cfg.Timeout
}

// maxWaitingPayer bounds the waiting queries of one payer, except for those of callers
// that hold a slot already.
const maxWaitingPayer = 32

// maxReservedWait bounds the time that a reserved query waits for a slot. Those of the
// HTTP API wait within Config.Timeout.
const maxReservedWait = 30 * time.Second

// AllNamespaces is the payer of the queries that read all namespaces and have no other.
var AllNamespaces = fair.Operator("all namespaces")

// slotsOf returns the slots that a query uses.
func (e *Engine) slotsOf(q Query) *fair.Slots {
	if q.Reserved {
		return e.reserved
	}
	return e.slots
}

// payerOf returns whose share a query uses.
func (e *Engine) payerOf(q Query) fair.Payer {
	if q.Payer == (fair.Payer{}) && q.Namespaces == nil {
		return AllNamespaces
	}
	return cmp.Or(q.Payer, e.slotsOf(q).Lightest(q.Namespaces))
}

// acquire waits for a slot of the query's payer. ctx ends when the query has no time left.
func (e *Engine) acquire(parent context.Context, q Query) (ctx context.Context, release func(), err error) {
	free := func() {}
	if !q.HasSlot {
		wait := e.cfg.Timeout
		if q.Reserved {
			wait = maxReservedWait
		}
		waiting, cancel := context.WithTimeout(parent, wait)
		free, err = e.slotsOf(q).Acquire(waiting, fair.Request{Payer: q.Payer, MaxWaiting: maxWaitingPayer})
		if err != nil {
			cancel()
			return nil, nil, waitError(err)
		}
		if q.Reserved {
			cancel()
		} else {
			parent = waiting // its rest is the time of the evaluation
			slot := free
			free = func() { slot(); cancel() }
		}
	}
	ctx, cancel := context.WithTimeout(parent, e.timeout(q))
	return ctx, func() { cancel(); free() }, nil
}

// maxChecks bounds the texts that are parsed at a time: each takes milliseconds, and up to 1 MiB.
const maxChecks = 8

// inTurn calls check, which parses a text, when it is the payer's turn.
func (e *Engine) inTurn(ctx context.Context, payer fair.Payer, check func() error) error {
	release, err := e.checks.Acquire(ctx, fair.Request{Payer: payer, MaxWaiting: maxWaitingPayer})
	if err != nil {
		return waitError(err)
	}
	defer release()
	return check()
}

// waitError returns the error of a query that got no slot.
func waitError(err error) error {
	switch {
	case errors.Is(err, fair.ErrFull):
		return exceeds(LimitSlots, "%s", err)
	case errors.Is(err, context.DeadlineExceeded):
		return exceeds(LimitSlots, "the query timed out while it waited for other queries; try again later")
	}
	return promql.ErrQueryCanceled("query queue")
}

// detach copies what Query.Close would return to the engine's pools.
func detach(v parser.Value) parser.Value {
	m, ok := v.(promql.Matrix)
	if !ok {
		return v
	}
	out := make(promql.Matrix, len(m))
	for i, s := range m {
		out[i] = promql.Series{Metric: s.Metric, DropName: s.DropName, Floats: append([]promql.FPoint(nil), s.Floats...), Histograms: append([]promql.HPoint(nil), s.Histograms...)}
	}
	return out
}

// MaxSamples returns how many samples of 16 bytes one query may hold at the same time. In a
// container with a memory limit of less than 640 MB, one query's are an eighth of it.
func MaxSamples(limit int64, limited bool) int {
	const most = 5_000_000
	if !limited {
		return most
	}
	return int(min(most, limit/8/16))
}
