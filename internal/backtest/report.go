// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"slices"
	"strings"
)

// Report is what a study came to.
type Report struct {
	Cells  []Cell   `json:"cells"`
	Parts  []Part   `json:"parts"`
	Cases  []Case   `json:"cases"`
	Models []Model  `json:"models"`
	Peers  []string `json:"peers"`
	Prices Prices   `json:"prices,omitempty"`

	judge func(*Case) []Verdict
	class map[string]Class
}

// Part is some of the traces, summed up.
type Part struct {
	Name      string    `json:"name"`
	Summaries []Summary `json:"summaries"`
}

// NewReport sums up a study. Traces whose name contains one of untouched are
// summed up apart.
func NewReport(s *Study, cases []Case, untouched []string) *Report {
	r := &Report{Cells: s.Cells(cases), Cases: cases, Models: s.Models, judge: s.Judge, class: map[string]Class{}}
	for i := range s.Peers {
		r.Peers = append(r.Peers, s.Peers[i].Name)
		r.class[s.Peers[i].Name] = s.Peers[i].Class
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

func (r *Report) part(name string, cells []Cell) {
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
