// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/scale/words"
)

// Misses counts the requests that missed a limit, by cause. Those of the last day count
// most.
type Misses struct {
	Planned  float64 `json:"planned"`  // replicas were as many and as busy as the plan has them
	Starting float64 `json:"starting"` // the load rose faster than replicas start
	Bounded  float64 `json:"bounded"`  // more replicas than maxReplicas or the budget were needed
	Server   float64 `json:"server"`   // more than usual at this load: the servers, or single requests
}

// Sum is the number of all of them.
func (m *Misses) Sum() float64 { return m.Planned + m.Starting + m.Bounded + m.Server }

// Causes returns the misses as shares of the requests of the last day.
func (s *State) Causes() Misses { return s.Missed.of(s.Ended) }

// Sentence says why requests of the last day missed a limit; empty: none did. The misses are shares.
func (m *Misses) Sentence() string {
	all := m.Sum()
	if all < 5e-5 { // 0.00 %
		return ""
	}
	var causes []string
	for _, c := range []struct {
		share float64
		cause string
	}{
		{m.Planned, "expected at the planned load"}, {m.Starting, "while replicas started"}, {m.Bounded, "for lack of replicas beyond maxReplicas or the budget"}, {m.Server, "more than usual at the load"},
	} {
		if c.share > all/20 {
			causes = append(causes, words.Share(c.share)+" "+c.cause)
		}
	}
	return fmt.Sprintf("%s of the requests of the last day missed a limit: %s", words.Share(all), strings.Join(causes, ", "))
}

// of returns the misses as shares of the requests that ended.
func (m Misses) of(ended float64) Misses { return m.times(1 / max(ended, 1)) }

func (m Misses) times(x float64) Misses {
	return Misses{m.Planned * x, m.Starting * x, m.Bounded * x, m.Server * x}
}

// Shortage says for how many more steps a shortage of replicas counts as the cause of
// misses: requests end after it.
type Shortage struct{ Starting, Bounded int8 }

func (s Shortage) next(x *Step) Shortage {
	s.Starting, s.Bounded = max(0, s.Starting-1), max(0, s.Bounded-1)
	switch wanted := x.Wanted / x.Seconds; {
	case x.Wanted < x.Serving+x.Seconds/2: // less than half a replica is missing
	case wanted > x.Most:
		s.Bounded = lag
	default:
		s.Starting = lag
	}
	return s
}

// attribute adds the misses of a step, of which this share is usual at its load.
func (m *Misses) attribute(x *Step, short Shortage, usual float64) {
	missed := min(x.Missed, x.Ended)
	switch {
	case short.Bounded > 0:
		m.Bounded += missed
	case short.Starting > 0:
		m.Starting += missed
	default:
		planned := min(missed, usual*x.Ended)
		m.Planned += planned
		m.Server += missed - planned
	}
}
