// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"math"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// What is recorded of a decision is its inputs. For each type of target and each way to add up the replicas, Demand is what
// the engine made of the input, and replicas with Reading lead to the same input.
func TestInputsAreReadAsTheEngineMakesThem(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	decide := func(s scale.Signal, o scale.Observation) (in scale.Input, demand float64) {
		t.Helper()
		d, _ := scale.Decide(scale.Policy{Min: 1, Max: 1000, MaxAge: 5 * time.Second, Signals: []scale.Signal{s}}, o, scale.State{}, now)
		for _, step := range d.Steps {
			if step.Rule == scale.RuleDemand {
				return d.Inputs[0], step.Facts.(*facts.Demand).Demand
			}
		}
		t.Fatalf("%+v asks for nothing: %+v", s, d)
		return in, 0
	}
	of := func(values ...float64) (o scale.Observation) {
		o.Replicas = int32(len(values))
		for _, v := range values {
			o.Pods = append(o.Pods, scale.Replica{Phase: scale.Serving, Since: now.Add(-time.Hour), Readings: []scale.Reading{{Value: v, At: now, OK: true}}})
		}
		return o
	}
	for _, kind := range []scale.TargetType{scale.AverageValue, scale.Value} {
		for _, how := range []gpu.Aggregation{gpu.Mean, gpu.Sum, gpu.Max} {
			s := scale.Signal{Name: "s", Type: kind, Target: 3, Aggregate: how}
			in, want := decide(s, of(2, 4, 9))
			if got := Demand(&s, in.Value, 3, false); math.Abs(got-want) > 1e-9 {
				t.Errorf("type %d, aggregate %v: %g asks for %g replicas, want %g", kind, how, in.Value, got, want)
			}
			r := Reading(&s, in.Value, float64(in.Fresh))
			if again, demand := decide(s, of(r, r, r)); math.Abs(again.Value-in.Value) > 1e-9 || math.Abs(demand-want) > 1e-9 {
				t.Errorf("type %d, aggregate %v: replicas with %g have %g and ask for %g, want %g and %g", kind, how, r, again.Value, demand, in.Value, want)
			}
		}
		s := scale.Signal{Name: "s", Type: kind, Target: 3}
		o := of(0, 0, 0)
		o.Totals = []scale.Reading{{Value: 15, At: now, OK: true}}
		in, want := decide(s, o)
		if got := Demand(&s, in.Value, 3, true); math.Abs(got-want) > 1e-9 {
			t.Errorf("type %d: the query's %g asks for %g replicas, want %g", kind, in.Value, got, want)
		}
	}
}
