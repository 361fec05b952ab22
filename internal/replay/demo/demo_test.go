// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// run replays a load as fast as it can.
func run(t *testing.T, name string, seed uint64) *Demo {
	t.Helper()
	load, err := LoadNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	prices, err := price.Parse("A100=2,H100=3")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Load: load, Seed: seed, Prices: prices})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context(), 0, nil); err != nil {
		t.Fatal(err)
	}
	return d
}

// The promise of the demo: GPUPilot keeps the objective, and the others need more GPU-hours.
func TestThePromiseIsKept(t *testing.T) {
	for _, l := range Loads() {
		s := run(t, l.Name, 1).State(0)
		ours := s.Contestants[0]
		if !ours.Kept {
			t.Errorf("%s: GPUPilot missed %.2f %%", l.Name, ours.MissedPercent)
		}
		for _, c := range s.Contestants[1:] {
			if c.GPUHours < ours.GPUHours {
				t.Errorf("%s: %s has %.1f GPU-hours, GPUPilot %.1f", l.Name, c.Name, c.GPUHours, ours.GPUHours)
			}
		}
		if !strings.Contains(s.Summary(), "GPUPilot kept the promise with") {
			t.Errorf("%s: the summary is\n%s", l.Name, s.Summary())
		}
	}
}

// The sentence of a change is that of the step that decided.
func TestChange(t *testing.T) {
	c := changeOf(7, &scale.Decision{Current: 5, Replicas: 6, Steps: []scale.Step{
		{Rule: scale.RuleBounds, Before: 8, After: 6, Facts: facts.Max(6)}, {Rule: scale.RuleTolerance, Before: 5, After: 1},
	}})
	if want := "maxReplicas is 6: 6 instead of 8"; c.Sentence != want || len(c.Steps) != 2 || c.From != 5 || c.To != 6 || c.Second != 7 {
		t.Errorf("got %+v, want the sentence %q", c, want)
	}
}

func TestState(t *testing.T) {
	d := run(t, "morning", 2)
	s := d.State(0)
	if !s.Done || s.Second != 3600 || len(s.Points) != 361 || len(s.Changes) == 0 || len(s.Steps) == 0 {
		t.Fatalf("done %v at %d s, %d points, %d changes, %d steps", s.Done, s.Second, len(s.Points), len(s.Changes), len(s.Steps))
	}
	hours := make([]float64, len(s.Contestants))
	for _, p := range s.Points {
		for i, r := range p.Replicas {
			hours[i] += float64(r) * 2 * pointSeconds / 3600
		}
	}
	for i, c := range s.Contestants {
		if math.Abs(hours[i]/c.GPUHours-1) > 0.05 || math.Abs(*c.Cost-2*c.GPUHours) > 1e-9 {
			t.Errorf("%s: %.2f GPU-hours and $%.2f, the points have %.2f GPU-hours", c.Name, c.GPUHours, *c.Cost, hours[i])
		}
	}
	for i, c := range s.Changes {
		if c.From == c.To || c.Sentence == "" || i > 0 && c.From != s.Changes[i-1].To {
			t.Errorf("change %d is %+v", i, c)
		}
	}
	if got := d.State(3400).Points; len(got) != 21 || got[0].Second != 3400 {
		t.Errorf("from 3400 s on there are %d points", len(got))
	}
	if a, b := run(t, "morning", 2).State(0).Summary(), s.Summary(); a != b {
		t.Errorf("the same seed gave\n%s and\n%s", a, b)
	}
}

// Costs are by the price of the simulated servers' GPU. Without one there are none: missing is not zero.
func TestCosts(t *testing.T) {
	load, _ := LoadNamed("morning")
	f := func(prices, cost, at string) {
		t.Helper()
		list, err := price.Parse(prices)
		if err != nil {
			t.Fatal(err)
		}
		d, err := New(Config{Load: load, Seed: 1, Prices: list})
		if err != nil {
			t.Fatal(err)
		}
		for range 600 {
			d.advance(600)
		}
		s := d.State(0)
		if text := s.Summary(); !strings.Contains(text, cost) || strings.Contains(text, "Costs are at") != (at != "") || !strings.Contains(text, at) {
			t.Errorf("with %q:\n%s\nwant %q and %q", prices, text, cost, at)
		}
		b, err := json.Marshal(s)
		if err != nil || strings.Contains(string(b), `"usd"`) != (at != "") {
			t.Errorf("with %q: %v, %s", prices, err, b)
		}
	}
	f("A100=2,H100=3", " $", "Costs are at $2 per GPU-hour.")
	f("H100=3,*=1.5", " $", "Costs are at $1.5 per GPU-hour.")
	f("H100=3", " –", "")
	f("0", " –", "")
}

func TestInterrupt(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	load, _ := LoadNamed("lunch")
	d, err := New(Config{Load: load, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	err = d.Run(ctx, 0, func(s *State) {
		if s.Second >= 300 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || d.State(0).Second > 360 {
		t.Errorf("after %d s: %v", d.State(0).Second, err)
	}
}

func TestPage(t *testing.T) {
	load, _ := LoadNamed("evening")
	d, err := New(Config{Load: load, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		d.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	if code, body := get("/"); code != 200 || !strings.Contains(body, "demo.js") {
		t.Errorf("/: %d %s", code, body)
	}
	var s State
	if code, body := get("/state.json?from=0"); code != 200 || json.Unmarshal([]byte(body), &s) != nil || len(s.Contestants) != 3 || s.Done {
		t.Errorf("/state.json: %d %s", code, body)
	}
	for _, from := range []string{"-1", "x", "1e3"} {
		if code, body := get("/state.json?from=" + from); code != 400 || !strings.Contains(body, from) {
			t.Errorf("from=%s: %d %s", from, code, body)
		}
	}
	if _, err := LoadNamed("noon"); err == nil || !strings.Contains(err.Error(), "morning, lunch, evening") {
		t.Errorf("an unknown load: %v", err)
	}
}
