// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/base/weight"
	"github.com/gpupilot/gpupilot/internal/promql/queries"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// The bounds that are not configurable.
const (
	// maxSubquerySteps bounds the steps of one subquery.
	maxSubquerySteps = 100_000
	// maxWindowPoints bounds, for one series, the steps of a function multiplied by
	// the points of its subquery at each step. The engine does not look at the clock
	// while it works through them.
	maxWindowPoints = 2_000_000
	// maxWork bounds the expressions of a query, each multiplied by the steps at which it is evaluated: a range of
	// 11,000 steps may have 45.
	maxWork = 500_000
)

// span is when a query is evaluated.
type span struct {
	from, to time.Time
	step     time.Duration
	isRange  bool
}

// seconds returns the time from the first to the last step. Time.Sub would saturate at
// 292 years.
func (s span) seconds() float64 {
	if !s.isRange {
		return 0
	}
	return (float64(s.to.UnixMilli()) - float64(s.from.UnixMilli())) / 1000
}

// plan is what a query's text says about its cost.
type plan struct {
	// growth bounds by how much label_replace and label_join lengthen labels: each
	// byte of a series' labels becomes growth bytes at most.
	growth float64
	// literals are the bytes of all strings of the query, which those functions can
	// add to each series.
	literals int
	// leaves counts what makes series without the storage: numbers and functions.
	leaves int
	// work counts what is evaluated, at each step.
	work float64
	// names are the metrics that the selectors name exactly.
	names []string
	// exported is true if the query names a label such as exported_pod anywhere.
	exported bool
}

// check parses a query and refuses what is too expensive by its text.
func (e *Engine) check(text string, s span) (_ plan, err error) {
	defer func() { _ = e.cfg.Programs.Note(err) }()
	if err := weight.Check(weight.Query, "the query has %d bytes", len(text), e.cfg.MaxLength, "use a recording rule"); err != nil {
		return plan{}, tooHeavy(LimitLength, err)
	}
	steps, err := e.checkSpan(s)
	if err != nil {
		return plan{}, err
	}
	lexed := queries.TextOf(text)
	if err := lexed.Weigh(e.cfg.MaxDepth); err != nil {
		return plan{}, tooHeavy(LimitLength, err)
	}
	expr, err := e.parser.ParseExpr(text)
	if err != nil {
		return plan{}, &SyntaxError{err}
	}
	c := checker{engine: e, plan: plan{growth: 1, literals: lexed.Strings}}
	if err := c.visit(expr, cost{steps: steps, seconds: s.seconds(), growth: 1}); err != nil {
		return plan{}, err
	}
	if c.plan.bytes() > float64(e.cfg.MaxBytes) {
		return plan{}, errLabels(e.cfg.MaxBytes)
	}
	return c.plan, nil
}

// bytes bounds the labels of the series that a query makes without the storage.
func (p *plan) bytes() float64 {
	if p.growth == 1 {
		return 0
	}
	return p.growth * float64(p.literals) * float64(p.leaves)
}

// checkSpan returns the number of steps of a query.
func (e *Engine) checkSpan(s span) (float64, error) {
	switch {
	case !s.isRange:
		return 1, nil
	case s.step < time.Millisecond: // the engine counts in milliseconds, and divides by the step
		return 0, exceeds(LimitSteps, "zero or negative query resolution step widths, and those below 1 ms, are not accepted: try a positive integer")
	case s.to.Before(s.from):
		return 0, exceeds(LimitSteps, "end timestamp must not be before start time")
	}
	steps := math.Floor(s.seconds()/s.step.Seconds()) + 1
	if steps > float64(e.cfg.MaxSteps) {
		return 0, tooHeavy(LimitSteps, weight.Check(weight.Query, "the range has %d steps", whole(steps), e.cfg.MaxSteps, "use a longer step"))
	}
	return steps, nil
}

// cost is what an expression costs by where it stands.
type cost struct {
	depth   int
	steps   float64 // at which it is evaluated
	seconds float64 // from the first to the last step
	growth  float64 // of labels, by the functions around it
}

type checker struct {
	engine *Engine
	plan   plan
}

// visit checks an expression and what it contains.
func (c *checker) visit(node parser.Node, at cost) error {
	at.depth++
	if err := weight.Check(weight.Query, "the query is nested %d deep", at.depth, c.engine.cfg.MaxDepth, "use a recording rule"); err != nil {
		return tooHeavy(LimitLength, err)
	}
	c.plan.growth, c.plan.work = max(c.plan.growth, at.growth), c.plan.work+at.steps
	if err := weight.Check(weight.Query, "the query evaluates %d expressions", whole(c.plan.work), maxWork, "use a longer step, a shorter range or a recording rule"); err != nil {
		return tooHeavy(LimitSteps, err)
	}
	switch n := node.(type) {
	case *parser.SubqueryExpr:
		inner, err := c.subquery(n, at)
		if err != nil {
			return err
		}
		at = inner
	case *parser.Call:
		c.plan.leaves++
		at.growth *= growthOf(n)
	case *parser.NumberLiteral:
		c.plan.leaves++
	case *parser.StringLiteral: // of label_replace and label_join
		c.plan.leaves++
		c.noteLabels(n.Val)
	case *parser.AggregateExpr:
		c.noteLabels(n.Grouping...)
	case *parser.BinaryExpr:
		if n.VectorMatching != nil {
			c.noteLabels(n.VectorMatching.MatchingLabels...)
			c.noteLabels(n.VectorMatching.Include...)
		}
	case *parser.VectorSelector:
		for _, m := range n.LabelMatchers {
			c.noteLabels(m.Name)
		}
		if i := slices.IndexFunc(n.LabelMatchers, isName); i >= 0 {
			c.plan.names = append(c.plan.names, n.LabelMatchers[i].Value)
		}
	}
	for child := range parser.ChildrenIter(node) {
		if err := c.visit(child, at); err != nil {
			return err
		}
	}
	return nil
}

// noteLabels notes the labels that a query names.
func (c *checker) noteLabels(names ...string) {
	for _, name := range names {
		_, ok := page.ExportedOwner(name)
		c.plan.exported = c.plan.exported || ok
	}
}

// isName reports whether a matcher names one metric.
func isName(m *labels.Matcher) bool {
	return m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual
}

// subquery returns the cost of what a subquery evaluates.
func (c *checker) subquery(n *parser.SubqueryExpr, at cost) (cost, error) {
	step := n.Step
	if step <= 0 {
		step = c.engine.cfg.SubqueryStep
	}
	window := n.Range.Seconds() / step.Seconds()
	const do = "use a longer step, a shorter range or a recording rule"
	if err := weight.Check(weight.Query, "a subquery adds up %d steps", whole(window*at.steps), maxWindowPoints, do); err != nil {
		return cost{}, tooHeavy(LimitSteps, err)
	}
	at.seconds += n.Range.Seconds()
	at.steps = math.Floor(at.seconds/step.Seconds()) + 1
	return at, tooHeavy(LimitSteps, weight.Check(weight.Query, "a subquery has %d steps", whole(at.steps), maxSubquerySteps, do))
}

// whole returns a number of steps that may be too large for an int.
func whole(steps float64) int { return int(min(steps, 1e15)) }

// growthOf returns the factor by which a function can lengthen labels.
func growthOf(n *parser.Call) float64 {
	switch n.Func.Name {
	case "label_replace":
		if len(n.Args) < 3 {
			return 1
		}
		// Each reference to a group can be the whole value.
		if s, ok := n.Args[2].(*parser.StringLiteral); ok {
			return 1 + float64(strings.Count(s.Val, "$"))
		}
	case "label_join":
		return 1 + float64(max(0, len(n.Args)-3))
	}
	return 1
}
