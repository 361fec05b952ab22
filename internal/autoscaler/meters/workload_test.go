// SPDX-License-Identifier: Apache-2.0

package meters

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Values and targets say whether they are a replica's or the workload's.
func TestMeasuresTellTheirScope(t *testing.T) {
	f := func(typ scale.TargetType, total bool, value, target string) {
		t.Helper()
		var m Workload
		p := scale.Policy{Signals: []scale.Signal{{Name: "q", Type: typ}}}
		m.RecordDecision(&scale.Decision{
			Rule: scale.RuleDemand, Current: 4, Replicas: 2,
			Steps:  []scale.Step{{Rule: scale.RuleDemand, Signal: "q", Facts: &facts.Demand{Demand: 2, Total: total}}},
			Inputs: []scale.Input{{Signal: "q", Value: 1, Target: 2, Fresh: 1}},
		}, &p, NamesOf(&p), nil, &scale.State{})
		s := m.Signals[0]
		if got := scopeOf(s.valueIsTotal); got != value {
			t.Errorf("type %v, total %v: the value is per %s, want %s", typ, total, got, value)
		}
		if got := scopeOf(s.targetIsTotal); got != target {
			t.Errorf("type %v, total %v: the target is per %s, want %s", typ, total, got, target)
		}
	}
	f(scale.AverageValue, false, "replica", "replica")
	f(scale.AverageValue, true, "workload", "replica")
	f(scale.Value, true, "workload", "workload")
}

func TestScalesAreCountedByDirection(t *testing.T) {
	var m Workload
	for _, to := range []int32{2, 5, 1} {
		m.RecordScale(&scale.Decision{Current: 3, Replicas: to, Rule: scale.RuleDemand}, time.Now())
	}
	if m.scales[scaledUp] != 1 || m.scales[scaledDown] != 2 || m.last.direction != scaledDown {
		t.Errorf("%v, last %s; want 1 up, 2 down, last down", m.scales, m.last.direction)
	}
}

// The history has the names that /metrics has.
func TestLongNamesAreTheSameInTheHistory(t *testing.T) {
	long := strings.Repeat("é", 400)
	for _, x := range NamesOf(&scale.Policy{Signals: []scale.Signal{{Name: long + "1"}, {Name: long + "2"}}}) {
		if l := maps.Collect(x.perWorkload.Labels()); l["signal"] != x.Name || l["per"] != "workload" {
			t.Errorf("the history has %q, want %q", x.perWorkload, x.Name)
		}
	}
}
