// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

// The mean of a cell's replays decides whether it reaches an objective. GPU-hours are
// compared with the oracle's in the same cells.
func TestObjectives(t *testing.T) {
	s := &Study{
		Ours:  []contender.Entry{{Name: "ours", Family: "ours", Class: contender.OnRequests}},
		Peers: []contender.Entry{{Name: "dear", Family: "hpa", Class: contender.OnRequests}, {Name: "cheap", Family: "hpa", Class: contender.OnRequests}, {Name: "gpu", Family: "hpa", Class: contender.OnGPU}},
	}
	replay := func(startup float64, seed uint64, ours, cheap, oracle float64) Case {
		return Case{
			Trace: "a", Model: "m", Startup: startup, Seed: seed, Hours: 1,
			Ours:       []Result{{Name: "ours", Class: contender.OnRequests, Outcome: service.Outcome{Violations: ours, GPUHours: 15, Requests: 100}}},
			References: []Result{{Name: "low", Family: "oracle", Outcome: service.Outcome{Violations: 3, GPUHours: 5}}, {Name: "high", Family: "oracle", Outcome: service.Outcome{Violations: oracle, GPUHours: 10}}},
			Peers:      []Point{{Name: "dear", Violations: 0.1, GPUHours: 40}, {Name: "cheap", Violations: cheap, GPUHours: 12}, {Name: "gpu", Violations: 0, GPUHours: 1}},
		}
	}
	cases := []Case{
		replay(30, 1, 0.5, 0.9, 0.2), replay(30, 2, 1.4, 1.3, 0.2), // ours 0.95 % on average, cheap 1.1 %
		replay(60, 1, 3, 0.5, 0.2), replay(60, 2, 1.5, 0.6, 0.2), // ours 2.25 %, cheap 0.55 %
	}
	var got []string
	for _, o := range s.Objectives(cases, nil) {
		for _, k := range o.Attainments {
			got = append(got, fmt.Sprintf("%s %g %s %s %d/%d %s", o.Class, o.Percent, k.Kind, k.Contender, k.Cells, o.Cells, k.cost()))
		}
	}
	want := []string{
		"requests 99 policy ours 1/2 1.50", "requests 99 matching cheap 1/2 1.20", "requests 99 setting dear 2/2 4.00",
		"requests 99 hindsight the cheapest setting of each replay 2/2 1.77", "requests 99 oracle oracle 2/2 1.00",
		"requests 98 policy ours 1/2 1.50", "requests 98 matching cheap 2/2 1.20", "requests 98 setting cheap 2/2 1.20",
		"requests 98 hindsight the cheapest setting of each replay 2/2 1.20", "requests 98 oracle oracle 2/2 1.00",
		"requests 95 policy ours 2/2 3.00", "requests 95 matching cheap 2/2 2.40", "requests 95 setting cheap 2/2 2.40",
		"requests 95 hindsight the cheapest setting of each replay 2/2 2.40", "requests 95 oracle oracle 2/2 1.00",
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got\n%s\nwant\n%s", g, w)
	}
}

// A setting that was chosen by some traces is judged on the others: the best one there may differ.
func TestSettingsAreChosenBeforehand(t *testing.T) {
	s := &Study{
		Ours:  []contender.Entry{{Name: "ours", Class: contender.OnRequests}},
		Peers: []contender.Entry{{Name: "a", Class: contender.OnRequests}, {Name: "b", Class: contender.OnRequests}},
	}
	replay := func(trace string, a, b float64) Case {
		return Case{
			Trace: trace, Seed: 1, Ours: []Result{{Name: "ours", Class: contender.OnRequests, Outcome: service.Outcome{Violations: 0.5, GPUHours: 12}}},
			References: []Result{{Family: contender.OracleSchedule, Outcome: service.Outcome{Violations: 0.2, GPUHours: 10}}},
			Peers:      []Point{{Name: "a", Violations: a, GPUHours: 15}, {Name: "b", Violations: b, GPUHours: 13}},
		}
	}
	cases := []Case{replay("known", 0.5, 2), replay("known too", 0.5, 0.5), replay("new", 3, 0.5), replay("newer", 0.6, 0.5)}
	var got []string
	for _, o := range s.Objectives(cases, func(trace string) bool { return strings.HasPrefix(trace, "new") }) {
		for _, k := range o.Attainments {
			if o.Untouched && o.Percent == 99 {
				got = append(got, fmt.Sprintf("%s %s %d/%d %s", k.Kind, k.Contender, k.Cells, o.Cells, k.cost()))
			}
		}
	}
	if want := []string{"policy ours 2/2 1.20", "chosen a 1/2 1.50", "oracle oracle 2/2 1.00"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// An objective that no contender reaches has zero cells and no cost.
func TestUnreachedObjectives(t *testing.T) {
	s := &Study{Ours: []contender.Entry{{Name: "ours", Class: contender.OnGPU}}}
	cases := []Case{{Trace: "a", Seed: 1, Ours: []Result{{Name: "ours", Class: contender.OnGPU, Outcome: service.Outcome{Violations: 30, GPUHours: 4}}}}}
	for _, o := range s.Objectives(cases, nil) {
		if len(o.Attainments) != 2 || o.Attainments[0].Cells != 0 || o.Attainments[0].cost() != "-" || o.Attainments[1].Cells != 0 {
			t.Errorf("%+v", o)
		}
	}
}

// The report, its table and its page have the objectives.
func TestReportHasObjectives(t *testing.T) {
	s := smallStudy(t)
	cases, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := NewReport(s, cases, nil)
	var table, page bytes.Buffer
	if err := r.Table(&table); err != nil {
		t.Fatal(err)
	}
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if n := len(r.Objectives); n != 3 {
		t.Errorf("%d objectives, want 3", n)
	}
	for line := range strings.Lines(table.String()) {
		if n := utf8.RuneCountInString(line); n > 101 {
			t.Errorf("%d columns: %s", n-1, line)
		}
	}
	for _, want := range []string{"who keeps 99, 98 and 95 % of the requests, on requests: queue and running (2 cells)", "99%   policy", "hindsight", "oracle"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	for _, want := range []string{"Who keeps 99, 98 and 95 %", "most cells", "of 2</td>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}
