// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// Cell is a policy on a trace with a model and a start-up time: means over the seeds.
type Cell struct {
	Trace   string          `json:"trace"`
	Model   string          `json:"model"`
	Startup float64         `json:"startupSeconds"`
	Ours    string          `json:"ours"`
	Class   contender.Class `json:"class"`

	Ratio      float64 `json:"ratio"`
	Violations float64 `json:"violationsPercent"`
	Front      float64 `json:"frontViolationsPercent"`
	GPUHours   float64 `json:"gpuHours"`
	Oracle     float64 `json:"oracleGPUHours"`
	OracleMiss float64 `json:"oracleViolationsPercent"`
	Turns      float64 `json:"turnsPerHour"`
	FrontTurns float64 `json:"frontTurnsPerHour"`
	Under      float64 `json:"underPercent"`
	Over       float64 `json:"overPercent"`
	Overshoot  float64 `json:"overshoot"`
	Reaction   float64 `json:"reactionSeconds"`
	Regret     float64 `json:"regret"` // GPU-hours ÷ the oracle's, minus 1
	Killed     int     `json:"startingKilled"`
	Cascades   int     `json:"cascades"`
	Nearest    string  `json:"nearest"` // of the last seed
	Seeds      int     `json:"seeds"`
}

// Cells returns the means of the cases over their seeds.
func (s *Study) Cells(cases []Case) []Cell {
	var out []*Cell
	find := func(c *Case, v *Verdict) *Cell {
		for _, x := range out {
			if x.Trace == c.Trace && x.Model == c.Model && x.Startup == c.Startup && x.Ours == v.Ours {
				return x
			}
		}
		x := &Cell{Trace: c.Trace, Model: c.Model, Startup: c.Startup, Ours: v.Ours, Class: v.Class}
		out = append(out, x)
		return x
	}
	for i := range cases {
		c := &cases[i]
		for k, v := range s.Judge(c) {
			find(c, &v).add(&c.Ours[k], &v, c)
		}
	}
	cells := make([]Cell, len(out))
	for i, x := range out {
		x.mean()
		cells[i] = *x
	}
	return cells
}

func (x *Cell) add(r *Result, v *Verdict, c *Case) {
	x.Seeds++
	x.Ratio += v.Ratio
	x.Violations += r.Violations
	x.Front += v.Front
	x.GPUHours += r.GPUHours
	x.Turns += r.Turns
	x.FrontTurns += v.FrontTurns
	x.Under += r.Under
	x.Over += r.Over
	x.Overshoot += r.Overshoot
	x.Reaction += r.Reaction
	x.Regret += v.Regret
	x.Killed += r.Killed
	x.Cascades += r.Cascades
	x.Nearest = v.Nearest
	if o := c.oracle(r.Violations); o != nil {
		x.Oracle += o.GPUHours
		x.OracleMiss += o.Violations
	}
}

func (x *Cell) mean() {
	n := float64(max(1, x.Seeds))
	for _, f := range []*float64{
		&x.Ratio, &x.Violations, &x.Front, &x.GPUHours, &x.Turns, &x.FrontTurns, &x.Under, &x.Over,
		&x.Overshoot, &x.Reaction, &x.Regret, &x.Oracle, &x.OracleMiss,
	} {
		*f /= n
	}
}

// Summary is one of our policies over several cells.
type Summary struct {
	Ours       string          `json:"ours"`
	Class      contender.Class `json:"class"`
	Cells      int             `json:"cells"`
	Geometric  float64         `json:"geometricMean"` // of the cells' ratios
	P95        float64         `json:"p95"`
	Worst      float64         `json:"worst"`
	WorstCell  string          `json:"worstCell"`
	Violations float64         `json:"violationsPercent"` // means over the cells
	Front      float64         `json:"frontViolationsPercent"`
	Regret     float64         `json:"regret"`
	Turns      float64         `json:"turnsPerHour"`
	FrontTurns float64         `json:"frontTurnsPerHour"`
	Killed     int             `json:"startingKilled"`
	Cascades   int             `json:"cascades"`
}

// Summarise returns a summary per policy, in the order of the cells.
func Summarise(cells []Cell) []Summary {
	by := map[string][]Cell{}
	var order []string
	for _, c := range cells {
		if _, ok := by[c.Ours]; !ok {
			order = append(order, c.Ours)
		}
		by[c.Ours] = append(by[c.Ours], c)
	}
	out := make([]Summary, 0, len(order))
	for _, name := range order {
		out = append(out, summary(name, by[name]))
	}
	return out
}

func summary(name string, cells []Cell) Summary {
	slices.SortFunc(cells, func(a, b Cell) int { return cmp.Compare(a.Ratio, b.Ratio) })
	n := len(cells)
	last := &cells[n-1]
	out := Summary{
		Ours: name, Class: last.Class, Cells: n, Worst: last.Ratio,
		WorstCell: fmt.Sprintf("%s %s %gs", last.Trace, last.Model, last.Startup),
		P95:       cells[max(0, int(math.Ceil(0.95*float64(n)))-1)].Ratio,
	}
	logs := 0.0
	for i := range cells {
		c := &cells[i]
		logs += math.Log(max(c.Ratio, 1e-6))
		out.Violations += c.Violations / float64(n)
		out.Front += c.Front / float64(n)
		out.Regret += c.Regret / float64(n)
		out.Turns += c.Turns / float64(n)
		out.FrontTurns += c.FrontTurns / float64(n)
		out.Killed += c.Killed
		out.Cascades += c.Cascades
	}
	out.Geometric = math.Exp(logs / float64(n))
	return out
}
