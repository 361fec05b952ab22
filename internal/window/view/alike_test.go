// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestProblemsOfOneKind(t *testing.T) {
	f := func(same bool, a, b string) {
		t.Helper()
		x, y := NodeSummary{Name: "node-a", Pool: "p", Problems: []string{a}}, NodeSummary{Name: "node-b", Pool: "p", Problems: []string{b}}
		if x.IsAlike(&y) != same || y.IsAlike(&x) != same {
			t.Errorf("%q and %q: alike %v, want %v", a, b, !same, same)
		}
		if y.Pool = "q"; x.IsAlike(&y) {
			t.Errorf("%q and %q of another pool are alike", a, b)
		}
	}
	f(true, "agent: no answer within 5s: dial tcp 10.0.0.1:9400: i/o timeout", "agent: no answer within 5s: dial tcp [fd00::12]:9400: i/o timeout")
	f(true, "agent: lookup node-a: no such host", "agent: lookup node-b: no such host")
	f(true, "8 of 8 GPUs without a fresh utilisation", "16 of 16 GPUs without a fresh utilisation")
	f(true, "GPULost: GPU-1 cannot be read any more", "GPULost: GPU-f00d-0000-0000 cannot be read any more")
	f(true, "XIDError: GPU-1: XID 79 at 2026-01-01T00:00:00Z, it fell off the bus", "XIDError: GPU-2: XID 79 at 2026-02-02T00:00:01Z, it fell off the bus")
	f(false, "XIDError: GPU-1: XID 79 at 2026-01-01T00:00:00Z, the GPU is lost", "XIDError: GPU-1: XID 48 at 2026-01-01T00:00:00Z, the GPU is lost")
	f(false, "agent: connection refused", "agent: i/o timeout")
	long := strings.Repeat("x ", 200)
	f(true, "agent: 10.0.0.1: "+long[:180]+"…", "agent: 10.100.100.100: "+long[:170]+"…")
	none := NodeSummary{Name: "a"}
	if none.IsAlike(&none) {
		t.Error("nodes without a problem are alike")
	}
}

// Of a thousand nodes with one fault, the node with another one is first, and is not left out.
func TestEveryKindOfProblemIsSent(t *testing.T) {
	var nodes []NodeSummary
	for i := range 2000 {
		nodes = append(nodes, NodeSummary{Name: fmt.Sprintf("node-%04d", i), Pool: fmt.Sprintf("pool-%d", i%100), Counts: Counts{Stale: 8}, Problems: []string{fmt.Sprintf("agent: dial tcp 10.0.%d.%d:9400: i/o timeout", i/250, i%250)}})
	}
	nodes[1999].Counts, nodes[1999].Problems = Counts{}, []string{"GPULost: GPU-5 cannot be read any more"}
	nodes[1000].Problems = []string{"agent: connection refused"}
	nodes[1100].Problems = []string{"agent: connection refused"} // of the same pool
	got, omitted := problemsOf(nodes)
	if len(got) != maxProblems || omitted != 2000-maxProblems {
		t.Fatalf("%d problems, %d omitted", len(got), omitted)
	}
	is := func(name string, alike int) func(NodeSummary) bool {
		return func(n NodeSummary) bool { return n.Name == name && n.Alike == alike }
	}
	if !is("node-1999", 1)(got[0]) || !is("node-1000", 2)(got[1]) || got[2].Alike != 18 || !strings.Contains(got[2].Problems[0], "timeout") || got[3].Alike < 18 {
		t.Errorf("the first are %+v", got[:4])
	}
	if slices.ContainsFunc(got, func(n NodeSummary) bool { return n.Alike == 0 }) {
		t.Error("a node of a group is sent before another group")
	}
}
