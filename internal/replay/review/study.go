// SPDX-License-Identifier: Apache-2.0

package review

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/replay/backtest"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	// modelName is the server that is simulated. What single requests were is not recorded.
	modelName = "llama-8b"
	// usualStartup is the start of a replica, in seconds, before one was learned.
	usualStartup = 120

	// The parts of the history that are replayed, spread over it and over the day.
	mostParts   = 7
	partSeconds = 4 * 3600
	leastPart   = 1200
	leastWhole  = 3600 // of the history
	// pastSeconds is how much of the load before a part a plan knows, as in the controller.
	pastSeconds = 26 * 3600

	// mostName is how much of a signal's name is shown, in bytes.
	mostName = 100

	// mostNeed bounds the replicas of a load, and mostReplicas those of a policy: memory.
	mostNeed     = 256
	mostReplicas = 512
	// mostRequests bounds the simulated requests of each policy, and mostWork the time that
	// a replay works.
	mostRequests = 1_500_000
	mostWork     = 5 * time.Minute
	// restShare is how long a replay rests for the time that it works: it takes a quarter
	// of a core.
	restShare = 3
)

var errWork = errors.New("the replay takes too much time for the controller")

// record is what was recorded of a workload.
type record struct {
	history  backtest.History
	from, to time.Time
	gpus     float64 // per replica; 0: not recorded
	held     float64 // GPUs, as a mean over the recorded minutes
	busy     bool    // maxReplicas was reached
}

const gpusMetric = "gpupilot_autoscaler_gpus"

// read reads what was recorded of the last 14 days.
func (r *Reviewer) read(j *job, compiled policy.Compiled) (out record, err error) {
	now := time.Now()
	q := view.MinuteQuery{
		Kind: history.KindAutoscaler, From: now.Add(-history.Retention).Truncate(time.Minute), To: now, Step: time.Minute,
		Metrics: []history.Metric{history.NewMetric(view.ReplicasMetric, "state", "serving"), history.NewMetric(view.ReplicasMetric, "state", "current"), gpusMetric},
	}
	for i := range compiled.Policy.Signals {
		q.Metrics = append(q.Metrics, history.NewMetric(view.SignalMetric, "signal", excerpt.Of(compiled.Policy.Signals[i].Name, history.MaxSignal)))
	}
	out.history = backtest.History{Name: j.name, Policy: compiled}
	if out.history.Minutes, _, err = r.deps.Minutes(j.namespace, j.name, &q); err != nil {
		return out, err
	}
	first, last, ok := out.history.Span()
	if !ok || last.Sub(first) < leastWhole*time.Second {
		return out, errors.New("less than an hour of the load is recorded")
	}
	out.from, out.to = first, last.Add(time.Minute)
	out.countGPUs(compiled.Policy.Max)
	return out, nil
}

// countGPUs sets what follows from the replicas and the GPUs of the minutes.
func (x *record) countGPUs(most int32) {
	m := &x.history.Minutes
	replicas, gpus, n, atMost := 0.0, 0.0, 0.0, 0
	for i := range m.Steps() {
		current := m.Named(i, view.ReplicasMetric, "state", "current")
		if current == nil {
			continue
		}
		if current.Max[i] >= float64(most) {
			atMost++
		}
		if held := m.Named(i, gpusMetric); held != nil {
			replicas, gpus, n = replicas+current.Mean[i], gpus+held.Mean[i], n+1
		}
	}
	x.busy = float64(atMost) > 0.01*float64(m.Steps())
	if n > 0 && replicas > 0 && gpus > 0 {
		x.gpus, x.held = math.Max(1, math.Round(gpus/replicas)), gpus/n
	}
}

// study replays a job's workload.
func (r *Reviewer) study(ctx context.Context, j *job) (b view.Backtest, err error) {
	compiled, err := policy.Compile(j.object)
	if err != nil {
		return b, fmt.Errorf("the object is invalid: %w", err)
	}
	recorded, err := r.read(j, compiled)
	if err != nil {
		return b, err
	}
	model, err := service.Preset(modelName)
	if err != nil {
		return b, err
	}
	model.GPUs = int32(max(1, recorded.gpus))
	models := []service.Model{model}
	if _, err := (backtest.Limits{}).Apply(models, []policy.Named{{Compiled: compiled}}); err != nil {
		return b, errors.New("no replica of the simulated server can keep the limits of its slo")
	}
	p, err := newPlan(&recorded, models[0], compiled)
	if err != nil {
		return b, err
	}
	p.startup = float64(usualStartup)
	if s := policy.StartupOf(j.object); s > 0 {
		p.startup = s.Seconds()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p.rest = rest(ctx, cancel)
	cases, err := p.run(ctx, func(done int) { r.note(j, done, len(p.parts)) })
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	if err != nil {
		return b, err
	}
	price := 0.0
	if ref := j.object.Spec.ScaleTargetRef; r.deps.Price != nil {
		price = r.deps.Price(j.namespace, ref.Kind, ref.Name)
	}
	return p.answer(j, &recorded, cases, price), nil
}

// rest returns a function that a replay calls between two short pieces of work.
func rest(ctx context.Context, cancel context.CancelCauseFunc) func() {
	began, worked := time.Now(), time.Duration(0)
	return func() {
		d := time.Since(began)
		if d < time.Millisecond {
			return
		}
		if worked += d; worked > mostWork {
			cancel(errWork)
		}
		t := time.NewTimer(restShare * d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		began = time.Now()
	}
}

// plan is what is replayed.
type plan struct {
	entries []contender.Entry // the workload's own policy first
	config  backtest.Config   // without a part
	parts   []part
	startup float64  // median, in seconds
	percent float64  // of the requests that are to keep the limits
	missing int      // minutes of the history
	queries []string // signals that are not replayed
	rest    func()
}

// part is a part of the history, in seconds.
type part struct{ from, seconds float64 }

func newPlan(recorded *record, m service.Model, compiled policy.Compiled) (*plan, error) {
	var queries []string
	for i, s := range compiled.Sources {
		switch err := contender.Simulates(s); {
		case s.Kind == policy.Query:
			queries = append(queries, excerpt.Of(compiled.Policy.Signals[i].Name, mostName))
		case err != nil:
			return nil, fmt.Errorf("a signal cannot be replayed: %w", err)
		}
	}
	if len(queries) == len(compiled.Sources) {
		return nil, errors.New("all signals are queries, which cannot be replayed")
	}
	peak, mean, missing := recorded.history.Load()
	if peak > mostNeed {
		return nil, fmt.Errorf("the load needs up to %.0f replicas, and the controller replays up to %d", peak, mostNeed)
	}
	t, err := recorded.history.Trace(&m, 0, 0)
	if err != nil {
		return nil, err
	}
	p := &plan{percent: 99, missing: missing, queries: queries}
	for i := range compiled.Policy.Signals {
		if o := compiled.Policy.Signals[i].Objective; o > 0 {
			p.percent = 100 * o
		}
	}
	low, high := p.addPolicies(compiled, recorded)
	p.config = backtest.Config{Trace: t, Model: m, Min: low, Max: min(high, mostReplicas), Capacities: service.NewCapacities(&m)}
	if p.entries[0].Objective > 0 {
		p.config.Past = pastSeconds
	}
	for i := range p.entries {
		p.entries[i].Objective = p.percent / 100 // all are judged by the workload's own
	}
	p.parts = partsOf(t.Duration, mean*m.Capacity(trace.DefaultPrompt, trace.DefaultOutput))
	if p.parts == nil {
		return nil, fmt.Errorf("a load of %.0f replicas on the mean is too much for the controller", mean)
	}
	return p, nil
}

// partsOf returns the parts of a history that are replayed. rate is its mean of requests/s.
// nil: too many requests.
func partsOf(seconds, rate float64) (out []part) {
	n := math.Max(1, math.Min(mostParts, math.Floor(seconds/partSeconds)))
	each := math.Floor(math.Min(seconds/n, partSeconds))
	each = math.Min(each, math.Floor(mostRequests/n/math.Max(rate, 1e-9)))
	if each < leastPart {
		return nil
	}
	room := seconds/n - each // in which a part moves, so that the parts are at all times of the day
	for i := range int(n) {
		_, turn := math.Modf(float64(i) * (math.Sqrt(5) - 1) / 2)
		out = append(out, part{math.Floor(float64(i)*seconds/n + turn*room), each})
	}
	return out
}

// run replays all parts.
func (p *plan) run(ctx context.Context, done func(int)) (cases []backtest.Case, err error) {
	for i, x := range p.parts {
		done(i)
		cfg := p.config
		cfg.From, cfg.Seconds, cfg.Seed, cfg.Rest = x.from, x.seconds, uint64(i)+1, p.rest
		cfg.Startup = service.DefaultStartup(p.startup)
		results, err := backtest.Run(ctx, cfg, p.entries)
		if err != nil {
			return nil, err
		}
		cases = append(cases, backtest.Case{Trace: p.config.Trace.Name, Model: p.config.Model.Name, Startup: p.startup, Seed: cfg.Seed, Hours: x.seconds / 3600, Counted: cfg.CountedHours(), Ours: results})
	}
	return cases, nil
}
