// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// A request is judged by the policy's own limits, unless flags say otherwise.
func TestLimits(t *testing.T) {
	slo := func(itl, first float64) policy.Named {
		var n policy.Named
		n.Policy.Signals = []scale.Signal{{Limit: itl, FirstLimit: first}, {}}
		return n
	}
	f := func(flags backtestFlags, policies []policy.Named, want string) {
		t.Helper()
		m, err := backtest.Preset("llama-8b")
		if err != nil {
			t.Fatal(err)
		}
		notes, err := flags.limits([]backtest.Model{m}, policies)
		if want = "limits on llama-8b: " + want; err != nil || !slices.Equal(notes, []string{want}) {
			t.Errorf("%q, %v, want %q", notes, err, want)
		}
	}
	f(backtestFlags{}, nil, "2s to the first token (the model's), 15ms between tokens (the model's)")
	f(backtestFlags{}, []policy.Named{slo(0.05, 0), slo(0, 0), slo(0.05, 0)}, "2s to the first token (the model's), 50ms between tokens (the policy's slo)")
	f(backtestFlags{itl: 2e7}, []policy.Named{slo(0.05, 1)}, "1s to the first token (the policy's slo), 20ms between tokens (--itl)")
	f(backtestFlags{}, []policy.Named{slo(0.05, 1), slo(0.06, 1)},
		"1s to the first token (the policy's slo), 15ms between tokens (the model's, as the policies' differ; --itl sets it)")
}

// Requests that nothing could serve in time are not left out without a word.
func TestHopeless(t *testing.T) {
	replay := func(trace string, counted, lost int) backtest.Case {
		return backtest.Case{Trace: trace, Model: "m", Ours: []backtest.Result{{Requests: counted, Hopeless: lost}}}
	}
	models := []backtest.Model{{Name: "m", TTFTLimit: 2}}
	f := func(want string, cases ...backtest.Case) {
		t.Helper()
		notes, err := hopeless(cases, models)
		if got := strings.Join(notes, "\n"); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	f("", replay("a", 1000, 9))
	f("b: 9812 of 9900 requests cannot meet 2s to the first token on an idle m and are not counted", replay("a", 10, 0), replay("b", 44, 4906), replay("b", 44, 4906))
	if _, err := hopeless([]backtest.Case{replay("a", 0, 7)}, models); err == nil || !strings.Contains(err.Error(), "7 of 7 requests") {
		t.Errorf("nothing to judge by: %v", err)
	}
}

// What a reader would take for granted is said, and only without -q.
func TestBacktestNotes(t *testing.T) {
	args := []string{"--trace", traceFile(t), "--policy", policyFile(t, "p.yaml", "chat", 2, 7), "--peers", "none", "--seeds", "1", "--replicas"}
	f := func(replicas string, bounds bool, more ...string) {
		t.Helper()
		var stderr bytes.Buffer
		if _, err := told(t.Context(), &stderr, append(append(args, replicas), more...)...); err != nil {
			t.Fatal(err)
		}
		if quiet := slices.Contains(more, "-q"); strings.Contains(stderr.String(), "limits on llama-8b: 2s") == quiet {
			t.Errorf("--replicas %s %v: limits in %q", replicas, more, &stderr)
		}
		if strings.Contains(stderr.String(), "minReplicas and maxReplicas (chat's 2 to 7) are not applied: --replicas 3") != bounds {
			t.Errorf("--replicas %s %v: bounds in %q", replicas, more, &stderr)
		}
	}
	f("3", true)
	f("0", false)
	f("3", false, "-q")
}

// That requests are not counted is said with -q, too.
func TestBacktestTellsOfHopeless(t *testing.T) {
	var stderr bytes.Buffer
	_, err := told(t.Context(), &stderr, "-q", "--trace", traceFile(t), "--peers", "none", "--seeds", "1", "--replicas", "2", "--ttft", "40ms")
	if err != nil || !strings.HasPrefix(stderr.String(), "t: ") || !strings.HasSuffix(stderr.String(), " requests cannot meet 40ms to the first token on an idle llama-8b and are not counted\n") {
		t.Errorf("%v, %q", err, &stderr)
	}
}
