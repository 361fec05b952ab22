// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Report is what a study came to.
type Report struct {
	Version string    `json:"version,omitempty"` // of gpupilot
	Time    time.Time `json:"time,omitzero"`     // at which it was made

	Quick bool `json:"quick,omitempty"` // few of the peers' settings: not for publication

	Cells []Cell `json:"cells"`
	Parts []Part `json:"parts,omitempty"` // none without peers
	Cases []Case `json:"cases"`
	// Objectives are who keeps 99, 98 and 95 % of the requests, and at what cost.
	Objectives []Objective `json:"objectives,omitempty"`

	Models []Model  `json:"models"`
	Peers  []string `json:"peers"`
	Prices Prices   `json:"prices,omitempty"`

	judge  func(*Case) []Verdict
	class  map[string]Class  // by the peer's name
	family map[string]string // likewise
}

// Part is some of the traces, summed up.
type Part struct {
	Name      string    `json:"name"`
	Summaries []Summary `json:"summaries"`
}

// NewReport sums up a study. Traces whose name contains one of untouched are
// summed up apart.
func NewReport(s *Study, cases []Case, untouched []string) *Report {
	r := &Report{
		Cells: s.Cells(cases), Cases: cases, Models: s.Models, Objectives: s.Objectives(cases),
		judge: s.Judge, class: map[string]Class{}, family: map[string]string{},
	}
	for i := range s.Peers {
		r.Peers = append(r.Peers, s.Peers[i].Name)
		r.class[s.Peers[i].Name], r.family[s.Peers[i].Name] = s.Peers[i].Class, s.Peers[i].Family
	}
	apart := func(c Cell) bool {
		return slices.ContainsFunc(untouched, func(u string) bool { return strings.Contains(c.Trace, u) })
	}
	r.part("all traces", r.Cells)
	if len(untouched) > 0 {
		r.part("traces that were tuned on", slices.DeleteFunc(slices.Clone(r.Cells), apart))
		r.part("untouched traces", slices.DeleteFunc(slices.Clone(r.Cells), func(c Cell) bool { return !apart(c) }))
	}
	return r
}

// part sums up those of the cells that there are peers for.
func (r *Report) part(name string, cells []Cell) {
	cells = slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return !r.compared(c.Class) })
	if len(cells) > 0 {
		r.Parts = append(r.Parts, Part{name, Summarise(cells)})
	}
}

// price is what an hour of one of a model's GPUs costs; 0: not known.
func (r *Report) price(model string) float64 {
	i := slices.IndexFunc(r.Models, func(m Model) bool { return m.Name == model })
	if i < 0 {
		return 0
	}
	p, _ := r.Prices.Of(r.Models[i].GPU)
	return p.USD
}

// cost is what a cell's GPU-hours come to; empty where no price is known.
func (r *Report) cost(c *Cell) string {
	p := r.price(c.Model)
	if p <= 0 {
		return ""
	}
	return fmt.Sprintf("$%.0f", c.GPUHours*p)
}

// priced says whether the price of any model is known.
func (r *Report) priced() bool {
	return slices.ContainsFunc(r.Models, func(m Model) bool { return r.price(m.Name) > 0 })
}

// compared says whether there are peers that look at what this class does.
func (r *Report) compared(class Class) bool {
	for _, c := range r.class {
		if c == class {
			return true
		}
	}
	return false
}
