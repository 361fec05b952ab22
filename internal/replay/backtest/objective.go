// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"math"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// Objective is a percentage of the requests that are to meet their limits, with the
// contenders that reach it: in how many cells, and at what cost.
type Objective struct {
	Class       contender.Class `json:"class"`
	Untouched   bool            `json:"untouched,omitempty"` // only cells of traces that nothing was tuned on
	Percent     float64         `json:"keptPercent"`
	Cells       int             `json:"cells"` // of the class
	Attainments []Attainment    `json:"keepers"`
}

// Attainment is how often one contender reaches an objective.
type Attainment struct {
	Contender string `json:"who"`
	Kind      Kind   `json:"kind"`
	// Cells is the number of cells in which the mean of the replays reaches the objective.
	Cells int `json:"cellsKept"`
	// OverOracle is the GPU-hours ÷ those of the cheapest oracle that reaches the objective:
	// the geometric mean over all cells in which one does, also those that the contender
	// misses. 0: the contender or the oracle reaches it in no cell.
	OverOracle float64 `json:"gpuHoursOverOracle,omitempty"`
	// Matches is the policy that a KindMatching setting was chosen for.
	Matches string `json:"matches,omitempty"`
}

// Kind is the kind of contender of an Attainment.
type Kind string

// The kinds.
const (
	KindPolicy    Kind = "policy"    // one of ours
	KindSetting   Kind = "setting"   // the peers' setting that reaches the objective in the most cells
	KindChosen    Kind = "chosen"    // the setting that is the best one of the other traces, on the untouched ones
	KindMatching  Kind = "matching"  // the cheapest setting that reaches it in as many cells as a policy
	KindHindsight Kind = "hindsight" // the cheapest setting of each replay that reaches it
	KindOracle    Kind = "oracle"    // the cheapest oracle of each replay that reaches it
)

// objectivePercents returns the reported objectives.
func objectivePercents() []float64 { return []float64{99, 98, 95} }

// sum is the sum of a contender's results over the replays of a cell.
type sum struct {
	replays              int
	gpuHours, violations float64
}

func (s *sum) add(gpuHours, violations float64) {
	s.replays++
	s.gpuHours += gpuHours
	s.violations += violations
}

// reaches reports whether the mean over all replays of the cell has at most the allowed
// violations, in percent.
func (s *sum) reaches(allowed float64, replays int) bool {
	return s.replays == replays && s.violations <= allowed*float64(replays)
}

// cellSums are the sums of one cell, for one class and objective.
type cellSums struct {
	trace, model string
	startup      float64

	replays           int
	ours, settings    map[string]*sum
	oracle, hindsight sum // of each replay's cheapest that reaches the objective
}

func addTo(m map[string]*sum, name string, gpuHours, violations float64) {
	s := m[name]
	if s == nil {
		s = &sum{}
		m[name] = s
	}
	s.add(gpuHours, violations)
}

// Objectives returns the objectives of each class that has one of our policies, and those of the
// untouched traces alone. nil: none is.
func (s *Study) Objectives(cases []Case, untouched func(trace string) bool) (out []Objective) {
	var apart []Objective // of the untouched traces
	class := map[string]contender.Class{}
	for i := range s.Peers {
		class[s.Peers[i].Name] = s.Peers[i].Class
	}
	for _, c := range []contender.Class{contender.OnRequests, contender.OnGPU} {
		if !slices.ContainsFunc(s.Ours, func(o contender.Entry) bool { return o.Class == c }) {
			continue
		}
		for _, percent := range objectivePercents() {
			allowed := 100 - percent
			cells := sumCells(cases, c, class, allowed)
			out = append(out, Objective{Class: c, Percent: percent, Cells: len(cells), Attainments: attainments(cells, s.Ours, c, allowed)})
			var tuned, rest []*cellSums
			for _, x := range cells {
				if untouched != nil && untouched(x.trace) {
					rest = append(rest, x)
				} else {
					tuned = append(tuned, x)
				}
			}
			if len(tuned) > 0 && len(rest) > 0 {
				apart = append(apart, Objective{Class: c, Untouched: true, Percent: percent, Cells: len(rest), Attainments: chosen(tuned, rest, s.Ours, c, allowed)})
			}
		}
	}
	return append(out, apart...)
}

// chosen lists our policies and the oracle on untouched cells, and the setting that a user would
// choose by those that were tuned on.
func chosen(tuned, rest []*cellSums, ours []contender.Entry, class contender.Class, allowed float64) (out []Attainment) {
	for _, a := range attainments(rest, ours, class, allowed) {
		if a.Kind == KindPolicy || a.Kind == KindOracle {
			out = append(out, a)
		}
	}
	if settings := settingsOf(tuned, allowed); len(settings) > 0 {
		a := Attainment{Contender: mostCells(settings).Contender, Kind: KindChosen}
		a.count(rest, allowed, func(x *cellSums) *sum { return x.settings[a.Contender] })
		out = slices.Insert(out, len(out)-1, a)
	}
	return out
}

// sumCells sums the cases by cell, for one class and objective. class holds the classes of
// the peers.
func sumCells(cases []Case, of contender.Class, class map[string]contender.Class, allowed float64) (out []*cellSums) {
	for i := range cases {
		c := &cases[i]
		k := slices.IndexFunc(out, func(x *cellSums) bool { return x.trace == c.Trace && x.model == c.Model && x.startup == c.Startup })
		if k < 0 {
			k = len(out)
			out = append(out, &cellSums{trace: c.Trace, model: c.Model, startup: c.Startup, ours: map[string]*sum{}, settings: map[string]*sum{}})
		}
		out[k].add(c, of, class, allowed)
	}
	return out
}

func (x *cellSums) add(c *Case, of contender.Class, class map[string]contender.Class, allowed float64) {
	x.replays++
	for i := range c.Ours {
		if r := &c.Ours[i]; r.Class == of {
			addTo(x.ours, r.Name, r.GPUHours, r.Violations)
		}
	}
	cheapest := math.Inf(1)
	for _, p := range c.Peers {
		if class[p.Name] != of {
			continue
		}
		addTo(x.settings, p.Name, p.GPUHours, p.Violations)
		if p.Violations <= allowed {
			cheapest = min(cheapest, p.GPUHours)
		}
	}
	if !math.IsInf(cheapest, 1) {
		x.hindsight.add(cheapest, 0)
	}
	if o := c.oracle(allowed); o != nil && o.Violations <= allowed {
		x.oracle.add(o.GPUHours, 0)
	}
}

// attainments lists our policies of a class, each with its matching setting, and then the
// best setting, the best of hindsight and the oracle.
func attainments(cells []*cellSums, ours []contender.Entry, class contender.Class, allowed float64) (out []Attainment) {
	attain := func(name string, kind Kind, of func(*cellSums) *sum) Attainment {
		a := Attainment{Contender: name, Kind: kind}
		a.count(cells, allowed, of)
		return a
	}
	settings := settingsOf(cells, allowed)
	for i := range ours {
		if ours[i].Class != class {
			continue
		}
		name := ours[i].Name
		a := attain(name, KindPolicy, func(x *cellSums) *sum { return x.ours[name] })
		out = append(out, a)
		if m, ok := matching(settings, &a); ok {
			out = append(out, m)
		}
	}
	if len(settings) > 0 {
		out = append(out,
			mostCells(settings),
			attain("the cheapest setting of each replay", KindHindsight, func(x *cellSums) *sum { return &x.hindsight }))
	}
	return append(out, attain("oracle", KindOracle, func(x *cellSums) *sum { return &x.oracle }))
}

// settingsOf returns the peers' settings.
func settingsOf(cells []*cellSums, allowed float64) (out []Attainment) {
	for _, name := range settingNames(cells) {
		a := Attainment{Contender: name, Kind: KindSetting}
		a.count(cells, allowed, func(x *cellSums) *sum { return x.settings[name] })
		out = append(out, a)
	}
	return out
}

// mostCells returns the setting that reaches the objective in the most cells, the cheapest of those.
func mostCells(settings []Attainment) Attainment {
	return slices.MinFunc(settings, func(a, b Attainment) int {
		return cmp.Or(cmp.Compare(b.Cells, a.Cells), cmp.Compare(a.OverOracle, b.OverOracle), cmp.Compare(a.Contender, b.Contender))
	})
}

// settingNames returns the names of the peers' settings, sorted.
func settingNames(cells []*cellSums) (names []string) {
	if len(cells) == 0 {
		return nil
	}
	for name := range cells[0].settings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// count counts the cells in which a contender reaches the objective, and compares its
// GPU-hours with the oracle's in all cells that the oracle reaches: a contender is not
// flattered by leaving out the dear cells.
func (a *Attainment) count(cells []*cellSums, allowed float64, of func(*cellSums) *sum) {
	logs, n := 0.0, 0.0
	for _, x := range cells {
		s := of(x)
		if s == nil || s.replays != x.replays {
			continue
		}
		if s.reaches(allowed, x.replays) {
			a.Cells++
		}
		if x.oracle.replays == x.replays && x.oracle.gpuHours > 0 && s.gpuHours > 0 {
			logs += math.Log(s.gpuHours / x.oracle.gpuHours)
			n++
		}
	}
	if a.Cells > 0 && n > 0 {
		a.OverOracle = math.Exp(logs / n)
	}
}

// matching returns the cheapest setting that reaches the objective in at least as many
// cells as a policy. ok is false if the policy reaches it in no cell, or no setting does.
func matching(settings []Attainment, policy *Attainment) (best Attainment, ok bool) {
	for _, s := range settings {
		if policy.Cells > 0 && s.Cells >= policy.Cells && s.OverOracle > 0 && (!ok || s.OverOracle < best.OverOracle) {
			best, ok = s, true
		}
	}
	best.Kind, best.Matches = KindMatching, policy.Contender
	return best, ok
}
