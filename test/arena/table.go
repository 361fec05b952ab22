// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"cmp"
	"slices"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// Table is the result of a match.
type Table struct {
	Setting
	Loads []string `json:"loads"`
	Seeds int      `json:"seeds"`
	Rows  []Row    `json:"rows"` // by GoodPerGPUSecond, the best first
}

// Row is a contender in a match.
type Row struct {
	Name string `json:"name"`
	Ours bool   `json:"ours,omitempty"`
	Score
	MeanRank float64 `json:"meanRank"` // over the loads by GoodPerGPUSecond, 1 is best; equal ones share their ranks
	WinRate  float64 `json:"winRate"`  // of all comparisons with another contender on a load; equal is half
	// SafeRank is the mean rank among the contenders whose GoodRate is at least safeRate; 0:
	// it is not one of them.
	SafeRank float64 `json:"rankFrom85Percent,omitempty"`
	Floors   []Floor `json:"floors"`
	// OnFront is true if no other contender has at least its GoodRate with fewer GPUs.
	OnFront bool    `json:"onFront"`
	PerLoad []Score `json:"perLoad"` // means over the seeds
	Losses  []Loss  `json:"losses,omitempty"`
}

// Floor is a row with a floor of the good rate: on a load on which it is lower, GoodPerGPUSecond
// counts as 0.
type Floor struct {
	GoodRate float64 `json:"goodRate"`
	Kept     int     `json:"loadsKept"`
	MeanRank float64 `json:"meanRank"`
}

// Loss is a load on which another contender has at least our good rate with no more GPUs.
// Of several it is the one with the fewest GPUs.
type Loss struct {
	Load  string `json:"load"`
	Ours  Score  `json:"ours"`
	To    string `json:"to"`
	Their Score  `json:"their"`
}

// safeRate is the good rate from which SafeRank compares.
const safeRate = 0.85

// floors are the floors of the good rate.
func floors() []float64 { return []float64{0.95, 0.99} }

// table makes the table of the scores, by contender and load.
func (m *Match) table(set Setting, scores [][]Score) *Table {
	t := &Table{Setting: set, Seeds: m.Seeds}
	for i := range m.Loads {
		t.Loads = append(t.Loads, m.Loads[i].Name)
	}
	for i := range m.Contenders {
		row := Row{Name: m.Contenders[i].Name, Ours: m.Contenders[i].Family == contender.Ours, PerLoad: scores[i]}
		for _, x := range scores[i] {
			row.add(x, 1/float64(len(scores[i])))
		}
		t.Rows = append(t.Rows, row)
	}
	t.rank()
	for i := range t.Rows {
		r := &t.Rows[i]
		r.OnFront = !slices.ContainsFunc(t.Rows, func(x Row) bool { return x.beats(r.Score) })
		if r.Ours {
			r.Losses = t.losses(r)
		}
	}
	slices.SortStableFunc(t.Rows, func(a, b Row) int { return cmp.Compare(b.GoodPerGPUSecond, a.GoodPerGPUSecond) })
	return t
}

// beats reports whether a score is better in the good rate or in GPUs, and not worse in the
// other.
func (s Score) beats(x Score) bool {
	return s.GoodRate >= x.GoodRate && s.GPUs <= x.GPUs && (s.GoodRate > x.GoodRate || s.GPUs < x.GPUs)
}

// rank sets the ranks and what follows from them.
func (t *Table) rank() {
	all := make([]int, len(t.Rows))
	var safe []int
	for i := range t.Rows {
		if all[i] = i; t.Rows[i].GoodRate >= safeRate {
			safe = append(safe, i)
		}
	}
	for k, mean := range t.meanRanks(all, 0) {
		t.Rows[k].MeanRank, t.Rows[k].WinRate = mean, (float64(len(all))-mean)/float64(max(1, len(all)-1))
	}
	for k, mean := range t.meanRanks(safe, 0) {
		t.Rows[safe[k]].SafeRank = mean
	}
	for _, floor := range floors() {
		for k, mean := range t.meanRanks(all, floor) {
			f := Floor{GoodRate: floor, MeanRank: mean}
			for _, x := range t.Rows[k].PerLoad {
				if x.GoodRate >= floor {
					f.Kept++
				}
			}
			t.Rows[k].Floors = append(t.Rows[k].Floors, f)
		}
	}
}

// meanRanks returns the mean ranks of these rows over the loads, with a floor of the good
// rate.
func (t *Table) meanRanks(rows []int, floor float64) []float64 {
	out, values := make([]float64, len(rows)), make([]float64, len(rows))
	for l := range t.Loads {
		for k, i := range rows {
			values[k] = 0
			if x := t.Rows[i].PerLoad[l]; x.GoodRate >= floor {
				values[k] = x.GoodPerGPUSecond
			}
		}
		for k, r := range ranks(values) {
			out[k] += r / float64(len(t.Loads))
		}
	}
	return out
}

// ranks returns the rank of each value, 1 for the highest. Equal values share the mean of
// their ranks.
func ranks(values []float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		higher, equal := 0, 0
		for _, x := range values {
			if x > v {
				higher++
			} else if x == v {
				equal++
			}
		}
		out[i] = float64(higher) + float64(equal+1)/2
	}
	return out
}

// losses returns the loads on which another contender beats a row.
func (t *Table) losses(r *Row) (out []Loss) {
	for l, ours := range r.PerLoad {
		best := -1
		for i := range t.Rows {
			if x := t.Rows[i].PerLoad[l]; !t.Rows[i].Ours && x.beats(ours) && (best < 0 || x.GPUs < t.Rows[best].PerLoad[l].GPUs) {
				best = i
			}
		}
		if best >= 0 {
			out = append(out, Loss{t.Loads[l], ours, t.Rows[best].Name, t.Rows[best].PerLoad[l]})
		}
	}
	return out
}
