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

	// Ratio and Front are means over the Compared seeds, which are those within the front's
	// GPU-hours. Without any they are nil, and Outside says why unless there are no peers.
	Ratio    *float64 `json:"ratio,omitempty"`
	Front    *float64 `json:"frontViolationsPercent,omitempty"`
	Outside  Outside  `json:"outsideOfFront,omitempty"`
	Compared int      `json:"seedsCompared"`

	Violations float64 `json:"violationsPercent"`
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

	ratioSum, frontSum float64
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
	if v.Ratio != nil {
		x.Compared++
		x.ratioSum += *v.Ratio
		x.frontSum += *v.Front
	} else {
		x.Outside = v.Outside
	}
	x.Violations += r.Violations
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
		&x.Violations, &x.GPUHours, &x.Turns, &x.FrontTurns, &x.Under, &x.Over,
		&x.Overshoot, &x.Reaction, &x.Regret, &x.Oracle, &x.OracleMiss,
	} {
		*f /= n
	}
	if k := float64(x.Compared); k > 0 {
		x.Ratio, x.Front, x.Outside = new(x.ratioSum/k), new(x.frontSum/k), ""
	}
}

// Summary is one of our policies over several cells.
type Summary struct {
	Ours       string          `json:"ours"`
	Class      contender.Class `json:"class"`
	Cells      int             `json:"cells"`
	Compared   int             `json:"cellsCompared"`           // cells with a ratio
	Cheaper    int             `json:"cellsCheaper,omitempty"`  // than every peer setting
	Geometric  *float64        `json:"geometricMean,omitempty"` // of the ratios; nil if no cell has one, as the next four
	P95        *float64        `json:"p95,omitempty"`
	Worst      *float64        `json:"worst,omitempty"`
	WorstCell  string          `json:"worstCell,omitempty"`
	Front      *float64        `json:"frontViolationsPercent,omitempty"` // mean over the compared cells
	Violations float64         `json:"violationsPercent"`                // means over the cells
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
	n := float64(len(cells))
	out := Summary{Ours: name, Class: cells[0].Class, Cells: len(cells)}
	for i := range cells {
		c := &cells[i]
		if c.Outside == Cheaper {
			out.Cheaper++
		}
		out.Violations += c.Violations / n
		out.Regret += c.Regret / n
		out.Turns += c.Turns / n
		out.FrontTurns += c.FrontTurns / n
		out.Killed += c.Killed
		out.Cascades += c.Cascades
	}
	out.compare(slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return c.Ratio == nil }))
	return out
}

// compare sets what follows from the ratios of the cells that have one.
func (s *Summary) compare(cells []Cell) {
	n := len(cells)
	if n == 0 {
		return
	}
	slices.SortFunc(cells, func(a, b Cell) int { return cmp.Compare(*a.Ratio, *b.Ratio) })
	logs, front := 0.0, 0.0
	for i := range cells {
		logs += math.Log(max(*cells[i].Ratio, 1e-6))
		front += *cells[i].Front / float64(n)
	}
	worst := &cells[n-1]
	s.Compared, s.Geometric, s.Front = n, new(math.Exp(logs/float64(n))), &front
	s.P95, s.Worst = cells[int(math.Ceil(0.95*float64(n)))-1].Ratio, worst.Ratio
	s.WorstCell = fmt.Sprintf("%s %s %gs", worst.Trace, worst.Model, worst.Startup)
}
