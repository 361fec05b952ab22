// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func value(v float64) *float64 { return &v }

func TestCounts(t *testing.T) {
	v := View{MaxAge: time.Second, Nodes: []Node{{Name: "n", Pool: "p", GPUs: []GPU{
		{Utilization: value(100), Owners: []Owner{{}}},
		{Utilization: value(0.5), Owners: []Owner{{}}},
		{Utilization: value(0), Owners: []Owner{{}}},
		{Utilization: value(30)},
		{Utilization: value(0)},
		{Utilization: value(50), Age: 6 * time.Second, Owners: []Owner{{}}},
		{Owners: []Owner{{}}},
		{Lost: true, Utilization: value(90), TemperatureC: value(99), Owners: []Owner{{}}},
	}}, {Name: "empty", Fault: "GPULost: GPU 3", FaultSince: time.Unix(9, 0)}}}
	nodes := v.NodeSummaries()
	n := nodes[0]
	n.sum, n.fresh, n.cost, n.severe = 0, 0, Cost{}, false
	want := NodeSummary{
		Name: "n", Pool: "p", Cells: "400..--x", Problems: []string{"3 of 8 GPUs stale"},
		Counts: Counts{Nodes: 1, ProblemNodes: 1, ProblemGPUs: 3, GPUs: 8, Allocated: 6, Active: 2, Idle: 1, Free: 2, Stale: 3, Utilization: value(33.5)},
	}
	if d := cmp.Diff(want, n, cmp.AllowUnexported(Counts{}, NodeSummary{})); d != "" {
		t.Error(d)
	}
	if e := &nodes[1]; !slices.Equal(e.Problems, []string{"GPULost: GPU 3"}) || e.Utilization != nil || e.ProblemGPUs != 0 || !e.ProblemSince.Equal(time.Unix(9, 0)) {
		t.Errorf("%+v", e)
	}
}

// The hottest GPU has a fresh temperature; what is not known is not cold.
func TestHottest(t *testing.T) {
	three := 3
	v := View{MaxAge: time.Second, Nodes: []Node{
		{Name: "n1", GPUs: []GPU{{UUID: "1"}, {UUID: "2", TemperatureC: value(70)}}},
		{Name: "n2", GPUs: []GPU{{UUID: "3", TemperatureC: value(60)}, {UUID: "4", Index: &three, TemperatureC: value(88)}}},
		{Name: "n3", Pool: "p", GPUs: []GPU{{UUID: "5", TemperatureC: value(99), Age: time.Minute}}},
	}}
	b := v.Bounded(v.NodeSummaries(), true)
	if d := cmp.Diff(&Hottest{Node: "n2", UUID: "4", Index: b.Nodes[1].GPUs[1].Index, Cell: 1, TemperatureC: 88}, b.Hottest); d != "" || *b.Fleet.MaxTemperatureC != 88 {
		t.Error(d)
	}
	if s := v.NodeSummaries(); *s[0].MaxTemperatureC != 70 || s[2].MaxTemperatureC != nil || b.Pools[1].MaxTemperatureC != nil || *b.Pools[0].MaxTemperatureC != 88 {
		t.Errorf("nodes %+v, pools %+v", s, b.Pools)
	}
	none := View{Nodes: v.Nodes[2:]}
	if b := none.Bounded(none.NodeSummaries(), true); b.Hottest != nil {
		t.Errorf("%+v", b.Hottest)
	}
}

// Costs are those of held GPUs, and beside them of free ones. GPUs without a price are counted; without any price there are no costs.
func TestCosts(t *testing.T) {
	usd, zero := 4.0, 0.0
	held := []Owner{{Namespace: "a", Pod: "p"}}
	priced := []GPU{
		{UUID: "1", Utilization: &usd, Owners: held, USDPerHour: &usd},
		{UUID: "2", Utilization: &zero, Owners: held, USDPerHour: &usd},
		{UUID: "3", Utilization: &zero, USDPerHour: &usd},
	}
	others := []GPU{{UUID: "4", Utilization: &zero, Owners: held}, {UUID: "5", Utilization: &zero}, {UUID: "6"}}
	v := View{MaxAge: time.Second, Nodes: []Node{{Name: "n1", Pool: "x", GPUs: priced}, {Name: "n2", Pool: "y", GPUs: others}}}
	b := v.Bounded(v.NodeSummaries(), true)
	want := Cost{Held: 8, Idle: 4, Unpriced: 1, IdleUnpriced: 1, Free: 4, FreeUnpriced: 1}
	if got := b.Fleet.Cost; got == nil || *got != want {
		t.Errorf("the fleet costs %+v, want %+v", got, want)
	}
	if x, y := b.Pools[0].Cost, b.Pools[1].Cost; x == nil || *x != (Cost{Held: 8, Idle: 4, Free: 4}) || y != nil {
		t.Errorf("the pools cost %+v and %+v", x, y)
	}
}
