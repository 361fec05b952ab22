// SPDX-License-Identifier: Apache-2.0

package scale

import "time"

// State is what Decide remembers from one call to the next. The zero State is
// that of an engine that knows nothing yet: it scales up at once and goes down
// only when it has watched for a whole stabilisation window.
// Its size is bounded. States are values: Decide never changes one in place.
type State struct {
	Since    time.Time `json:"since"`             // of the first decision
	LastData time.Time `json:"lastData"`          // when a signal was last readable; zero: never
	Wants    []Want    `json:"wants,omitempty"`   // within the longer stabilisation window, thinned
	Changes  []Change  `json:"changes,omitempty"` // within the longest rate period
	Replicas int32     `json:"replicas"`          // spec.replicas at the last decision
	Serving  int32     `json:"serving"`           // replicas that served then
	ShrankAt time.Time `json:"shrankAt,omitzero"` // when fewer served than before
	ProbedAt time.Time `json:"probedAt,omitzero"` // of the last probe
	Probed   int32     `json:"probed,omitempty"`  // serving replicas at that probe

	// SaturatedSince is when the signals reached their ceiling; zero: they are
	// below, and what had piled up meanwhile is worked off.
	SaturatedSince time.Time `json:"saturatedSince,omitzero"`

	// OverloadAt is when a server last had so many requests that it cannot have kept
	// up; zero: never.
	OverloadAt time.Time `json:"overloadAt,omitzero"`

	// Levels, Trends, Flows, Curves and Firsts are what is known of signals, by their
	// names: a level and a trend of each that was readable at the last decision, a flow
	// of each whose requests were ever counted, and of each with a limit a curve of the
	// time between tokens, and one of the time to the first if that has a limit.
	Levels    []Level   `json:"levels,omitempty"`
	Trends    []Trend   `json:"trends,omitempty"`
	Flows     []Flow    `json:"flows,omitempty"`
	Curves    []Curve   `json:"curves,omitempty"`
	Firsts    []Curve   `json:"firsts,omitempty"`
	DecidedAt time.Time `json:"decidedAt,omitzero"` // of the last decision
}

// level is what is known of a signal's demand.
func (s *State) level(signal string) Level {
	for _, l := range s.Levels {
		if l.Signal == signal {
			return l
		}
	}
	return Level{Signal: signal}
}

// trend is what is known of where a signal's demand goes.
func (s *State) trend(signal string) Trend {
	for _, t := range s.Trends {
		if t.Signal == signal {
			return t
		}
	}
	return Trend{Signal: signal}
}

// flow is what is known of a signal's requests.
func (s *State) flow(signal string) Flow {
	for _, f := range s.Flows {
		if f.Signal == signal {
			return f
		}
	}
	return Flow{Signal: signal}
}

// curveOf is what was learned of a signal; nil: nothing.
func curveOf(curves []Curve, signal string) *Curve {
	for i := range curves {
		if curves[i].Signal == signal {
			return &curves[i]
		}
	}
	return nil
}

// Want is the range of replicas that signals asked for around one moment.
type Want struct {
	At   time.Time `json:"at"`
	Low  int32     `json:"low"`
	High int32     `json:"high"`
}

// Change is a change of spec.replicas that was observed, whoever made it.
type Change struct {
	At    time.Time `json:"at"`
	Delta int32     `json:"delta"`
}

// The bounds of a State: 64 wants over a 5-minute window keep 4.7 s of
// resolution, and no rate policy needs finer changes than its period ÷ 256.
const (
	maxWants   = 64
	maxChanges = 256
)

// remember adds a want and forgets those older than window.
func remember(wants []Want, w Want, window time.Duration) []Want {
	out := make([]Want, 0, len(wants)+1)
	for _, old := range wants {
		// A stamp from the future (the clock went back) would hold forever.
		if age := w.At.Sub(old.At); age >= 0 && age <= window {
			out = append(out, old)
		}
	}
	step := window / maxWants
	if n := len(out); n > 0 && w.At.Sub(out[n-1].At) < step {
		out[n-1].Low, out[n-1].High = min(out[n-1].Low, w.Low), max(out[n-1].High, w.High)
		return out
	}
	if len(out) >= maxWants {
		out = out[len(out)-maxWants+1:]
	}
	return append(out, w)
}

// extremes returns the lowest and highest want within window of now.
func extremes(wants []Want, now time.Time, window time.Duration) (lowest, highest int32, ok bool) {
	for _, w := range wants {
		if age := now.Sub(w.At); age < 0 || age > window {
			continue
		}
		if !ok {
			lowest, highest, ok = w.Low, w.High, true
			continue
		}
		lowest, highest = min(lowest, w.Low), max(highest, w.High)
	}
	return lowest, highest, ok
}

// record adds a change and forgets those older than period.
func record(changes []Change, c Change, period time.Duration) []Change {
	out := make([]Change, 0, len(changes)+1)
	for _, old := range changes {
		if age := c.At.Sub(old.At); age >= 0 && age <= period {
			out = append(out, old)
		}
	}
	if c.Delta == 0 {
		return out
	}
	if len(out) >= maxChanges {
		out = out[len(out)-maxChanges+1:]
	}
	return append(out, c)
}

// moved sums the changes in one direction within period: how far replicas have
// already gone, as a number ≥ 0.
func moved(changes []Change, now time.Time, period time.Duration, down bool) (n int32) {
	for _, c := range changes {
		if age := now.Sub(c.At); age < 0 || age >= period {
			continue
		}
		if down && c.Delta < 0 {
			n -= c.Delta
		}
		if !down && c.Delta > 0 {
			n += c.Delta
		}
	}
	return n
}
