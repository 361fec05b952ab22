// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// The limits are those of the policies, unless others are given.
func TestLimits(t *testing.T) {
	slo := func(itl, first float64) policy.Named {
		var n policy.Named
		n.Policy.Signals = []scale.Signal{{Limit: itl, FirstLimit: first}, {}}
		return n
	}
	f := func(limits Limits, policies []policy.Named, want string) {
		t.Helper()
		notes, err := limits.Apply([]service.Model{preset(t, "llama-8b")}, policies)
		if want = "limits on llama-8b: " + want; err != nil || !slices.Equal(notes, []string{want}) {
			t.Errorf("%q, %v, want %q", notes, err, want)
		}
	}
	f(Limits{}, nil, "2.5s to the first token (the model's), 25ms between tokens (the model's)")
	f(Limits{}, []policy.Named{slo(0.05, 0), slo(0, 0), slo(0.05, 0)}, "2.5s to the first token (the model's), 50ms between tokens (the policy's slo)")
	f(Limits{ITL: 20 * time.Millisecond}, []policy.Named{slo(0.05, 1)}, "1s to the first token (the policy's slo), 25ms between tokens (--itl, 20ms, which lies between two edges of the server's histogram)")
	f(Limits{}, []policy.Named{slo(0.05, 1), slo(0.06, 1)},
		"1s to the first token (the policy's slo), 25ms between tokens (the model's, as the policies' differ; --itl sets it)")
}

// A note says how many infeasible requests are not counted.
func TestInfeasibleNotes(t *testing.T) {
	replay := func(trace string, feasible, infeasible int) Case {
		return Case{Trace: trace, Model: "m", Ours: []Result{{Outcome: service.Outcome{Requests: feasible, Infeasible: infeasible}}}}
	}
	models := []service.Model{{Name: "m", TTFTLimit: 2}}
	f := func(want string, cases ...Case) {
		t.Helper()
		notes, err := InfeasibleNotes(cases, models)
		if got := strings.Join(notes, "\n"); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	f("", replay("a", 1000, 9))
	f("b: 9812 of 9900 requests cannot meet 2s to the first token on an idle m and are not counted", replay("a", 10, 0), replay("b", 44, 4906), replay("b", 44, 4906))
	if _, err := InfeasibleNotes([]Case{replay("a", 0, 7)}, models); err == nil || !strings.Contains(err.Error(), "7 of 7 requests") {
		t.Errorf("no feasible request: %v", err)
	}
}
