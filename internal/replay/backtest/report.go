// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// Report is the result of a study.
type Report struct {
	Version string    `json:"version,omitempty"` // of gpupilot
	Time    time.Time `json:"time,omitzero"`     // of the report

	Quick bool `json:"quick,omitempty"` // with a few of the peers' settings: not for publication

	Promises   []Promise   `json:"promises"`
	Cells      []Cell      `json:"cells"`
	Groups     []Group     `json:"parts,omitempty"` // none without peers
	Cases      []Case      `json:"cases"`
	Objectives []Objective `json:"objectives,omitempty"`

	Models []service.Model `json:"models"`
	Peers  []string        `json:"peers"`
	Notes  []string        `json:"notes,omitempty"` // in what the replay of our policies differs from a cluster
	Prices Prices          `json:"prices,omitempty"`

	judge  func(*Case) []Verdict
	class  map[string]contender.Class // by the peer's name
	family map[string]contender.Family
}

// Group is the summary of a group of traces.
type Group struct {
	Name      string    `json:"name"`
	Summaries []Summary `json:"summaries"`
}

// NewReport returns the report of a study. Traces whose name contains one of untouched have
// a group of their own.
func NewReport(s *Study, cases []Case, untouched []string) *Report {
	r := &Report{
		Promises: s.Promises(cases), Cells: s.Cells(cases), Cases: cases, Models: s.Models,
		judge: s.Judge, class: map[string]contender.Class{}, family: map[string]contender.Family{},
	}
	for i := range s.Peers {
		p := &s.Peers[i]
		r.Peers = append(r.Peers, p.Name)
		r.class[p.Name], r.family[p.Name] = p.Class, p.Family
	}
	for i := range s.Ours {
		r.Notes = append(r.Notes, s.Ours[i].Notes...)
		if s.High > 0 || slices.ContainsFunc(s.Traces, func(t *trace.Trace) bool { return t.Start.IsZero() }) {
			r.Notes = append(r.Notes, s.Ours[i].Untimed...)
		}
	}
	isUntouched := func(trace string) bool {
		return slices.ContainsFunc(untouched, func(u string) bool { return strings.Contains(trace, u) })
	}
	r.Objectives = s.Objectives(cases, isUntouched)
	r.addGroup("all traces", r.Cells)
	if len(untouched) > 0 {
		r.addGroup("traces that were tuned on", slices.DeleteFunc(slices.Clone(r.Cells), func(c Cell) bool { return isUntouched(c.Trace) }))
		r.addGroup("untouched traces", slices.DeleteFunc(slices.Clone(r.Cells), func(c Cell) bool { return !isUntouched(c.Trace) }))
	}
	return r
}

// addGroup summarises the cells that have peers.
func (r *Report) addGroup(name string, cells []Cell) {
	cells = slices.DeleteFunc(slices.Clone(cells), func(c Cell) bool { return !r.hasPeers(c.Class) })
	if len(cells) > 0 {
		r.Groups = append(r.Groups, Group{name, Summarise(cells)})
	}
}

// price returns the price of a GPU-hour on a model in US dollars; 0: unknown.
func (r *Report) price(model string) float64 {
	i := slices.IndexFunc(r.Models, func(m service.Model) bool { return m.Name == model })
	if i < 0 {
		return 0
	}
	p, _ := r.Prices.Of(r.Models[i].GPU)
	return p.USD
}

// cost formats the cost of a cell's GPU-hours; "" without a price.
func (r *Report) cost(c *Cell) string {
	p := r.price(c.Model)
	if p <= 0 {
		return ""
	}
	return fmt.Sprintf("$%.0f", c.GPUHours*p)
}

// hasPrices reports whether the price of any model is known.
func (r *Report) hasPrices() bool {
	return slices.ContainsFunc(r.Models, func(m service.Model) bool { return r.price(m.Name) > 0 })
}

// hasPeers reports whether the report has peers of a class.
func (r *Report) hasPeers(class contender.Class) bool {
	for _, c := range r.class {
		if c == class {
			return true
		}
	}
	return false
}
