// SPDX-License-Identifier: Apache-2.0

package backtest

import "github.com/gpupilot/gpupilot/internal/replay/contender"

// Verdict compares one of our policies in one case with the front of its class and with
// the oracle.
type Verdict struct {
	Ours       string
	Class      contender.Class
	Ratio      *float64 // nil outside of the front, and without peers
	Outside    Outside
	Front      *float64 // violations of the front at our GPU-hours, in percent; nil as Ratio
	FrontTurns float64  // turns per hour of the nearest point on the front
	Nearest    string   // name of that point
	// Regret is our GPU-hours ÷ the oracle's, minus 1. The oracle is the cheapest one with
	// no more violations than ours, or the one with the fewest.
	Regret float64
}

// Judge compares each of our policies in a case.
func (s *Study) Judge(c *Case) []Verdict {
	class := map[string]contender.Class{}
	for i := range s.Peers {
		class[s.Peers[i].Name] = s.Peers[i].Class
	}
	out := make([]Verdict, 0, len(c.Ours))
	for i := range c.Ours {
		ours := pointOf(&c.Ours[i])
		v := Verdict{Ours: ours.Name, Class: c.Ours[i].Class}
		var points []Point
		for _, p := range c.Peers {
			if class[p.Name] == v.Class {
				points = append(points, p)
			}
		}
		if len(points) > 0 {
			front := NewFront(points)
			if v.Outside = front.Outside(ours); v.Outside == "" {
				v.Ratio, v.Front = new(front.Ratio(ours)), new(front.ViolationsAt(ours.GPUHours))
			}
			if nearest, ok := front.Nearest(ours.GPUHours); ok {
				v.Nearest, v.FrontTurns = nearest.Name, nearest.Turns
			}
		}
		if o := c.oracle(ours.Violations); o != nil {
			v.Regret = ours.GPUHours/o.GPUHours - 1
		}
		out = append(out, v)
	}
	return out
}

// oracle returns the cheapest oracle with at most these violations, or the one with the
// fewest; nil without oracles.
func (c *Case) oracle(violations float64) (best *Result) {
	for k := range c.References {
		o := &c.References[k]
		if o.Family != contender.OracleSchedule || o.GPUHours <= 0 {
			continue
		}
		switch {
		case best == nil,
			o.Violations <= violations && (best.Violations > violations || o.GPUHours < best.GPUHours),
			best.Violations > violations && o.Violations < best.Violations:
			best = o
		}
	}
	return best
}
