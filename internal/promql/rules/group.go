// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// The limits of one rule.
const (
	ruleTimeout          = 10 * time.Second
	namespaceRuleTimeout = 2 * time.Second // so that a tenant's slow rules do not hold the slots
	maxResults           = 10_000          // series of one evaluation
	maxNamespaceResults  = 1000
)

// RuleState is how the last evaluation of a rule ended.
type RuleState struct {
	Rule  *Rule
	At    time.Time     // zero: not evaluated yet
	Took  time.Duration // the evaluation
	Error string
	// Failures is the number of evaluations that have failed since the last success.
	Failures int
}

// runner evaluates one group.
type runner struct {
	m        *Manager
	source   *Source
	group    *Group
	interval time.Duration
	cancel   context.CancelFunc
	done     chan struct{}

	previous []map[string]*result // series of each rule's last evaluation
	logged   []time.Time          // the last line about each rule

	mu     sync.Mutex
	states []RuleState
	missed uint64 // evaluations that did not happen in time
}

// start starts the evaluation of a group.
func (m *Manager) start(ctx context.Context, s *Source, g *Group) *runner {
	ctx, cancel := context.WithCancel(ctx)
	r := &runner{
		m: m, source: s, group: g, interval: max(g.Interval, m.cfg.Interval), cancel: cancel, done: make(chan struct{}),
		previous: make([]map[string]*result, len(g.Rules)), states: make([]RuleState, len(g.Rules)), logged: make([]time.Time, len(g.Rules)),
	}
	if g.Interval == 0 {
		r.interval = m.cfg.Interval
	}
	for i := range g.Rules {
		r.states[i].Rule = &g.Rules[i]
	}
	go r.run(ctx)
	return r
}

// stop ends the group and its series.
func (r *runner) stop(at time.Time) {
	r.cancel()
	<-r.done
	for i, series := range r.previous {
		r.m.deps.Store.end(at, series)
		r.m.deps.Store.setIncomplete(r.id(i), nil)
	}
}

func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	// Groups begin at different times, so that they are not all evaluated at once.
	timer := time.NewTimer(time.Duration(rand.Int64N(int64(min(r.interval, time.Second))/4 + 1)))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		at := r.m.deps.Now()
		r.evaluate(ctx, at)
		late := r.m.deps.Now().Sub(at)
		if n := late / r.interval; n > 0 {
			r.mu.Lock()
			r.missed += uint64(n)
			r.mu.Unlock()
		}
		timer.Reset(r.interval - late%r.interval)
	}
}

// evaluate evaluates the rules in order. A rule that fails does not stop the next.
func (r *runner) evaluate(ctx context.Context, at time.Time) {
	for i := range r.group.Rules {
		began := r.m.deps.Now()
		err := r.evaluateRule(ctx, i, at)
		if ctx.Err() != nil {
			return
		}
		state := RuleState{Rule: &r.group.Rules[i], At: at, Took: r.m.deps.Now().Sub(began)}
		if err != nil {
			state.Error = err.Error()
		}
		r.mu.Lock()
		before := r.states[i].Error
		if err != nil {
			state.Failures = r.states[i].Failures + 1
		}
		r.states[i] = state
		r.mu.Unlock()
		r.logChange(i, before, state.Error)
	}
}

// logEvery is the shortest time between two lines of the log about a rule: a tenant's
// rule can fail and work in turns.
const logEvery = time.Minute

// logChange logs when a rule begins to fail, or to work again.
func (r *runner) logChange(i int, before, after string) {
	if (before == "") == (after == "") || r.states[i].At.Sub(r.logged[i]) < logEvery {
		return
	}
	r.logged[i] = r.states[i].At
	switch rule := r.group.Rules[i].Record; {
	case before == "" && after != "":
		r.m.deps.Log.Warn("recording rule failed", "source", r.source.ID, "group", r.group.Name, "rule", rule, "err", excerpt.Of(after, maxText))
	case before != "" && after == "":
		r.m.deps.Log.Info("recording rule works again", "source", r.source.ID, "group", r.group.Name, "rule", rule)
	}
}

func (r *runner) evaluateRule(ctx context.Context, i int, at time.Time) error {
	q := engine.Query{PromQL: r.group.Rules[i].Expr, Payer: fair.Operator("rules of files"), Reserved: true, Timeout: ruleTimeout}
	most := maxResults
	if ns := r.source.Namespace; ns != "" {
		q.Payer, q.Namespaces, q.Timeout, most = fair.Namespace(ns), []string{ns}, namespaceRuleTimeout, maxNamespaceResults
	}
	at = at.Add(-r.group.Offset)
	v, notes, err := r.m.deps.Engine.Instant(ctx, q, at)
	if err != nil {
		return err
	}
	v, absent := engine.Complete(v, notes)
	samples, err := r.samples(i, v)
	if err != nil {
		return err
	}
	if r.group.Limit > 0 {
		most = min(most, r.group.Limit)
	}
	if len(samples) > most {
		return fmt.Errorf("the result has %d series; at most %d are recorded: aggregate, or select fewer", len(samples), most)
	}
	r.previous[i], err = r.m.deps.Store.append(&writer{
		rule: r.id(i), payer: q.Payer, trusted: r.source.Namespace == "", interval: r.interval,
	}, at, r.previous[i], samples)
	r.m.deps.Store.setIncomplete(r.id(i), r.incomplete(i, notes))
	if err == nil && len(samples) == 0 {
		err = absent
	}
	return err
}

// id returns the unique name of a rule.
func (r *runner) id(i int) string {
	return r.source.ID + "\x00" + r.group.Name + "\x00" + strconv.Itoa(i)
}

// incomplete returns what a rule's series lack, because those that it read lack it.
func (r *runner) incomplete(i int, notes annotations.Annotations) (out []engine.Incomplete) {
	for _, x := range engine.IncompleteIn(notes) {
		l := labels.NewBuilder(r.labels(i, x.Labels)).Del(model.MetricNameLabel).Labels()
		out = append(out, engine.Incomplete{Metric: r.group.Rules[i].Record, Labels: l, Why: x.Why})
	}
	return out
}

// samples returns the result of a rule with the rule's labels.
func (r *runner) samples(i int, v parser.Value) (out []Sample, err error) {
	switch v := v.(type) {
	case promql.Scalar:
		out = append(out, Sample{r.labels(i, labels.EmptyLabels()), v.V})
	case promql.Vector:
		for _, s := range v {
			if s.H != nil {
				return nil, fmt.Errorf("the result has histograms, which are not recorded: select a quantile, a sum or a count")
			}
			out = append(out, Sample{r.labels(i, s.Metric), s.F})
		}
	default:
		return nil, fmt.Errorf("the result is a %s: it must be a number or an instant vector", v.Type())
	}
	slices.SortFunc(out, func(a, b Sample) int { return labels.Compare(a.Labels, b.Labels) })
	for i := 1; i < len(out); i++ {
		if labels.Equal(out[i].Labels, out[i-1].Labels) {
			return nil, fmt.Errorf("the result has several series %s after the rule's labels are set: aggregate them", excerpt.Of(out[i].Labels.String(), maxText))
		}
	}
	return out, nil
}

// labels returns the labels of a result's series.
func (r *runner) labels(i int, l labels.Labels) labels.Labels {
	rule := &r.group.Rules[i]
	b := labels.NewBuilder(l)
	for name, v := range rule.Labels {
		b.Set(name, v)
	}
	b.Set(model.MetricNameLabel, rule.Record)
	if r.source.Namespace != "" {
		b.Set(r.m.cfg.Label, r.source.Namespace)
	}
	return b.Labels()
}

// maxText bounds a text of a tenant in a message, in bytes.
const maxText = 300
