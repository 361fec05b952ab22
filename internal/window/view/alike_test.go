// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
	f(true, "8 of 8 GPUs stale", "16 of 16 GPUs stale")
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

// Of two thousand nodes with one fault, the node with another one is not left out. Larger groups are before smaller
// ones of the same severity, and each says how many GPUs it has and since when.
func TestEveryKindOfProblemIsSent(t *testing.T) {
	noon := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	v := View{MaxAge: time.Second, Time: noon}
	add := func(i int, gpus ...GPU) (*Node, *Target) {
		name := fmt.Sprintf("node-%04d", i)
		v.Nodes = append(v.Nodes, Node{Name: name, Pool: fmt.Sprintf("pool-%d", i%100), GPUs: gpus})
		v.Targets = append(v.Targets, Target{Name: "agent/" + name, Kind: "agent", Node: name, Up: true, LastSuccess: noon.Add(-time.Duration(i) * time.Second)})
		return &v.Nodes[i], &v.Targets[i]
	}
	fresh := func(n int) (out []GPU) {
		for i := range n {
			out = append(out, GPU{UUID: fmt.Sprintf("GPU-%d", i), Utilization: value(0)})
		}
		return out
	}
	for i := range 2000 {
		switch n, target := add(i, fresh(8)...); i {
		case 1999: // one lost GPU, and one with another fault
			n.Fault, n.FaultSince = "GPULost: GPU-5 cannot be read any more; GPU-6: a row of its memory could not be remapped", noon.Add(-time.Hour)
			n.GPUs[5].Lost = true
		case 1000, 1100: // the same pool
			target.Contradiction = "it claims 2 devices of pod x"
		default:
			target.Up, target.Error = false, fmt.Sprintf("dial tcp 10.0.%d.%d:9400: i/o timeout", i/250, i%250)
			for j := range n.GPUs {
				n.GPUs[j].Utilization = nil
			}
		}
	}
	v.Targets[0].LastSuccess = time.Time{} // never
	got, omitted := problemsOf(v.NodeSummaries())
	if len(got) != maxProblems || omitted != 2000-maxProblems {
		t.Fatalf("%d problems, %d omitted", len(got), omitted)
	}
	var first []string
	for i := range 5 {
		n := &got[i]
		first = append(first, fmt.Sprintf("%s of %d nodes with %d GPUs for %v: %.20s", n.Name, n.Alike, n.AlikeGPUs, noon.Sub(n.AlikeSince), n.Problems[0]))
	}
	want := []string{
		"node-0001 of 20 nodes with 160 GPUs for 31m41s: agent: dial tcp 10.0", // the first of its pool since when is known
		"node-1999 of 1 nodes with 2 GPUs for 1h0m0s: GPULost: GPU-5 canno",
		"node-1000 of 2 nodes with 16 GPUs for " + noon.Sub(time.Time{}).String() + ": agent: it claims 2 d",
		"node-0002 of 20 nodes with 160 GPUs for 31m42s: agent: dial tcp 10.0",
		"node-0003 of 20 nodes with 160 GPUs for 31m43s: agent: dial tcp 10.0",
	}
	if d := cmp.Diff(want, first); d != "" {
		t.Error(d)
	}
	if slices.ContainsFunc(got, func(n NodeSummary) bool { return n.Alike == 0 }) {
		t.Error("a node of a group is sent before another group")
	}
	if all := v.Bounded(v.NodeSummaries(), true); all.Fleet.ProblemGPUs != 1997*8+2+16 {
		t.Errorf("%d GPUs have problems", all.Fleet.ProblemGPUs)
	}
}
