// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// The autoscalers for LLM servers are peers by their family or by their names. All the grid
// does not have them: its run time stays.
func TestLLMPeersByName(t *testing.T) {
	f := func(peers string, want int) {
		t.Helper()
		var s Study
		if err := s.SetContenders(nil, nil, peers, contender.QuickGrid()); err != nil || len(s.Peers) != want {
			t.Errorf("--peers %s: %d peers, want %d: %v", peers, len(s.Peers), want, err)
		}
		oracles := 0
		for i := range s.References {
			if s.References[i].Family == contender.OracleSchedule {
				oracles++
			}
		}
		if want := len(contender.Oracles()); oracles != want { // else a policy's cost depended on what it is compared with
			t.Errorf("--peers %s: %d oracles, want %d", peers, oracles, want)
		}
	}
	f("none", 0)
	grid, llm := len(contender.QuickGrid().Peers(nil, "")), len(contender.LLMPeers())
	f("all", grid)
	f("llm", llm)
	f("all,llm", grid+llm)
	f("published", len(contender.PublishedPeers()))
	f("ray-serve,llm-d-slo", 2)
	var s Study
	if err := s.SetContenders(nil, nil, "hpa,nothing", contender.QuickGrid()); err == nil || !strings.Contains(err.Error(), "ray-serve") {
		t.Errorf("%v: want the names that there are", err)
	}
}

// No two policies share a name.
func TestUniqueNames(t *testing.T) {
	f := func(names, files, want []string) {
		t.Helper()
		var all []policy.Named
		for _, name := range names {
			all = append(all, policy.Named{Name: name})
		}
		UniqueNames(all, files)
		for i := range all {
			if all[i].Name != want[i] {
				t.Errorf("%q in %q is called %q, want %q", names[i], files[i], all[i].Name, want[i])
			}
		}
	}
	f([]string{"a", "b"}, []string{"x.yaml", "x.yaml"}, []string{"a", "b"})
	f([]string{"chat", "chat"}, []string{"one/slo.yaml", "gpu.yaml"}, []string{"chat (slo.yaml)", "chat (gpu.yaml)"})
	f([]string{"chat", "chat", "chat", "b"}, []string{"one/p.yaml", "two/p.yaml", "p.yaml", "p.yaml"},
		[]string{"chat (p.yaml)", "chat (p.yaml, 2)", "chat (p.yaml, 3)", "b"})
}
