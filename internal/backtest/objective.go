// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Objective is a share of the requests to be kept within the limits, with who
// keeps it in how many cells and at what cost.
type Objective struct {
	Class       Class    `json:"class"`
	KeptPercent float64  `json:"keptPercent"`
	Cells       int      `json:"cells"` // of the class
	Keepers     []Keeper `json:"keepers"`
}

// Keeper is one that keeps an objective in some of the cells.
type Keeper struct {
	Who  string `json:"who"`
	Kind string `json:"kind"` // one of the kinds of keepers
	// Cells are those in which the replays' mean keeps the objective.
	Cells int `json:"cellsKept"`
	// OverOracle is the geometric mean, over those of these cells that an oracle
	// keeps too, of the GPU-hours ÷ those of the cheapest oracle. 0: no such cell.
	OverOracle float64 `json:"gpuHoursOverOracle,omitempty"`
	// Matches is the policy that a setting was chosen for.
	Matches string `json:"matches,omitempty"`
}

// The kinds of keepers.
const (
	KeeperPolicy    = "policy"    // one of ours
	KeeperSetting   = "setting"   // the single setting of the peers that keeps the objective in the most cells
	KeeperMatching  = "matching"  // the cheapest single setting that keeps it in as many cells as a policy
	KeeperHindsight = "hindsight" // for each replay the cheapest setting that keeps it
	KeeperOracle    = "oracle"    // for each replay the cheapest oracle that keeps it
)

// keptPercents are the objectives that are told.
func keptPercents() []float64 { return []float64{99, 98, 95} }

// outlay is what a contender came to in a cell: sums over its replays.
type outlay struct {
	replays              int
	gpuHours, violations float64
}

func (o *outlay) add(gpuHours, violations float64) {
	o.replays++
	o.gpuHours += gpuHours
	o.violations += violations
}

// within says whether the mean over the cell's replays misses no more than allowed.
func (o *outlay) within(allowed float64, replays int) bool {
	return o.replays == replays && o.violations <= allowed*float64(replays)
}

// ground is one cell: a trace with a model and a start-up.
type ground struct {
	trace, model string
	startup      float64

	replays          int
	ours, settings   map[string]*outlay
	oracle, cheapest outlay // of an objective and a class
}

func addTo(m map[string]*outlay, name string, gpuHours, violations float64) {
	o := m[name]
	if o == nil {
		o = &outlay{}
		m[name] = o
	}
	o.add(gpuHours, violations)
}

// Objectives says who keeps which share of the requests, by class.
func (s *Study) Objectives(cases []Case) (out []Objective) {
	class := map[string]Class{}
	for i := range s.Peers {
		class[s.Peers[i].Name] = s.Peers[i].Class
	}
	for _, c := range []Class{OnRequests, OnGPU} {
		if !slices.ContainsFunc(s.Ours, func(o Contender) bool { return o.Class == c }) {
			continue
		}
		for _, kept := range keptPercents() {
			grounds := newGrounds(cases, c, class, 100-kept)
			o := Objective{Class: c, KeptPercent: kept, Cells: len(grounds)}
			o.keepers(grounds, s.Ours, 100-kept)
			out = append(out, o)
		}
	}
	return out
}

// newGrounds sums up the cases by cell, for one class and objective.
func newGrounds(cases []Case, of Class, class map[string]Class, allowed float64) (out []*ground) {
	for i := range cases {
		c := &cases[i]
		k := slices.IndexFunc(out, func(g *ground) bool { return g.trace == c.Trace && g.model == c.Model && g.startup == c.Startup })
		if k < 0 {
			k = len(out)
			out = append(out, &ground{trace: c.Trace, model: c.Model, startup: c.Startup, ours: map[string]*outlay{}, settings: map[string]*outlay{}})
		}
		out[k].take(c, of, class, allowed)
	}
	return out
}

func (g *ground) take(c *Case, of Class, class map[string]Class, allowed float64) {
	g.replays++
	for i := range c.Ours {
		if r := &c.Ours[i]; r.Class == of {
			addTo(g.ours, r.Name, r.GPUHours, r.Violations)
		}
	}
	cheapest := math.Inf(1)
	for _, m := range c.Peers {
		if class[m.Name] != of {
			continue
		}
		addTo(g.settings, m.Name, m.GPUHours, m.Violations)
		if m.Violations <= allowed {
			cheapest = min(cheapest, m.GPUHours)
		}
	}
	if !math.IsInf(cheapest, 1) {
		g.cheapest.add(cheapest, 0)
	}
	if o := c.oracle(allowed); o != nil && o.Violations <= allowed {
		g.oracle.add(o.GPUHours, 0)
	}
}

// keepers fills in who keeps the objective.
func (o *Objective) keepers(grounds []*ground, ours []Contender, allowed float64) {
	var settings []Keeper
	for _, name := range settingNames(grounds) {
		settings = append(settings, keeper(name, KeeperSetting, grounds, allowed, func(g *ground) *outlay { return g.settings[name] }))
	}
	for i := range ours {
		if ours[i].Class != o.Class {
			continue
		}
		name := ours[i].Name
		k := keeper(name, KeeperPolicy, grounds, allowed, func(g *ground) *outlay { return g.ours[name] })
		o.Keepers = append(o.Keepers, k)
		if m, ok := matching(settings, &k); ok {
			o.Keepers = append(o.Keepers, m)
		}
	}
	if len(settings) > 0 {
		o.Keepers = append(o.Keepers,
			slices.MinFunc(settings, func(a, b Keeper) int {
				return cmp.Or(cmp.Compare(b.Cells, a.Cells), cmp.Compare(a.OverOracle, b.OverOracle), cmp.Compare(a.Who, b.Who))
			}),
			keeper("the cheapest setting of each replay", KeeperHindsight, grounds, allowed, func(g *ground) *outlay { return &g.cheapest }))
	}
	o.Keepers = append(o.Keepers, keeper("oracle", KeeperOracle, grounds, allowed, func(g *ground) *outlay { return &g.oracle }))
}

// settingNames are the peers' settings, in order of name.
func settingNames(grounds []*ground) (names []string) {
	if len(grounds) == 0 {
		return nil
	}
	for name := range grounds[0].settings {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// keeper sums up one contender over the cells.
func keeper(name, kind string, grounds []*ground, allowed float64, of func(*ground) *outlay) Keeper {
	k := Keeper{Who: name, Kind: kind}
	logs, n := 0.0, 0.0
	for _, g := range grounds {
		o := of(g)
		if o == nil || !o.within(allowed, g.replays) {
			continue
		}
		k.Cells++
		if g.oracle.replays == g.replays && g.oracle.gpuHours > 0 && o.gpuHours > 0 {
			logs += math.Log(o.gpuHours / g.oracle.gpuHours)
			n++
		}
	}
	if n > 0 {
		k.OverOracle = math.Exp(logs / n)
	}
	return k
}

// matching is the cheapest setting that keeps the objective in as many cells as
// a policy. It has nothing to match where the policy keeps none.
func matching(settings []Keeper, policy *Keeper) (Keeper, bool) {
	best, ok := Keeper{}, false
	for _, s := range settings {
		if policy.Cells > 0 && s.Cells >= policy.Cells && s.OverOracle > 0 && (!ok || s.OverOracle < best.OverOracle) {
			best, ok = s, true
		}
	}
	best.Kind, best.Matches = KeeperMatching, policy.Who
	return best, ok
}

// role is what a table calls the keeper.
func (k *Keeper) role() string {
	switch k.Kind {
	case KeeperPolicy:
		return "policy"
	case KeeperSetting:
		return "most cells"
	case KeeperMatching:
		return "as many"
	case KeeperHindsight:
		return "hindsight"
	}
	return ""
}

// cost is the GPU-hours over the oracle's, as a table has it.
func (k *Keeper) cost() string {
	if k.OverOracle == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", k.OverOracle)
}

// objectives writes who keeps which share of the requests.
func (r *Report) objectives(b *strings.Builder) {
	for _, class := range each(r.Objectives, func(o *Objective) Class { return o.Class }) {
		t := &sheet{left: 2, titles: []string{"kept", "", "cells", "GPU-hours", "who"}, last: 1}
		cells := 0
		for i := range r.Objectives {
			o := &r.Objectives[i]
			if o.Class != class {
				continue
			}
			cells = o.Cells
			for k := range o.Keepers {
				x := &o.Keepers[k]
				t.add(fmt.Sprintf("%g%%", o.KeptPercent), x.role(), strconv.Itoa(x.Cells), x.cost(), cut(x.Who, keeperWidth))
			}
		}
		fmt.Fprintf(b, "\nwho keeps 99, 98 and 95 %% of the requests, %s (%s)\n", sees(class), many(cells, "cell", "cells"))
		t.write(b)
	}
}

// keeperWidth is as much of a keeper's name as a table has room for.
const keeperWidth = 62

// objectivesLegend says what the table of objectives has.
const objectivesLegend = "kept: cells whose replays miss at most 1, 2 or 5 % on the mean; GPU-hours: there, ÷ the oracle's\n" +
	"most cells: the single setting that keeps it in the most; hindsight: the cheapest of each replay\n" +
	"as many: the cheapest single setting that keeps it in as many cells as the policy above\n" +
	"oracle: the cheapest schedule that keeps it, knowing the load and each start\n"
