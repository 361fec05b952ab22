// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
)

// latencyLimit is what a request may take of one latency.
type latencyLimit struct {
	flag, what string
	given      time.Duration // by the flag; 0: not
	named      func(*scale.Signal) float64
	of         func(*backtest.Model) *float64 // seconds
}

// limits are those of the flags, else of the policies, else of the models: the
// models get them. It says which are used and where they are from.
func (f *backtestFlags) limits(models []backtest.Model, policies []policy.Named) (notes []string, err error) {
	all := []latencyLimit{
		{
			"--ttft", "to the first token", f.ttft, func(s *scale.Signal) float64 { return s.FirstLimit },
			func(m *backtest.Model) *float64 { return &m.TTFTLimit },
		},
		{
			"--itl", "between tokens", f.itl, func(s *scale.Signal) float64 { return s.Limit },
			func(m *backtest.Model) *float64 { return &m.ITLLimit },
		},
	}
	for i := range models {
		m := &models[i]
		var say []string
		for _, l := range all {
			from := l.put(m, policies)
			limit := inWords(*l.of(m))
			if alone := m.StepBase + m.StepPerSeq; *l.of(m) < alone {
				return nil, fmt.Errorf("%v %s (%s): on %s a request that is alone takes %v; give a longer %s, or another --model",
					limit, l.what, from, m.Name, inWords(alone), l.flag)
			}
			say = append(say, fmt.Sprintf("%v %s (%s)", limit, l.what, from))
		}
		notes = append(notes, fmt.Sprintf("limits on %s: %s", m.Name, strings.Join(say, ", ")))
	}
	return notes, nil
}

// put gives the model the limit and says where it is from.
func (l *latencyLimit) put(m *backtest.Model, policies []policy.Named) (from string) {
	if l.given > 0 {
		*l.of(m) = l.given.Seconds()
		return l.flag
	}
	value, differ := l.agreed(policies)
	switch {
	case differ:
		return "the model's, as the policies' differ; " + l.flag + " sets it"
	case value > 0:
		*l.of(m) = value
		return "the policy's slo"
	}
	return "the model's"
}

// agreed is the limit that every policy names that names one; 0: none does.
func (l *latencyLimit) agreed(policies []policy.Named) (value float64, differ bool) {
	for i := range policies {
		for k := range policies[i].Policy.Signals {
			named := l.named(&policies[i].Policy.Signals[k])
			if named > 0 && value > 0 && named != value {
				return 0, true
			}
			value = max(value, named)
		}
	}
	return value, false
}

// inWords is a latency as a person would write it.
func inWords(seconds float64) time.Duration {
	return time.Duration(math.Round(seconds * float64(time.Second)))
}

// boundsNote says that the policies' own bounds are not what a scaled load is
// replayed within.
func (f *backtestFlags) boundsNote(s *backtest.Study, policies []policy.Named) []string {
	if s.High == 0 || len(policies) == 0 {
		return nil
	}
	var own []string
	for i := range policies {
		p := &policies[i]
		own = append(own, fmt.Sprintf("%s's %d to %d", p.Name, p.Policy.Min, p.Policy.Max))
	}
	return []string{fmt.Sprintf("minReplicas and maxReplicas (%s) are not applied: --replicas %s scales the load; 0 replays it as recorded, within them",
		strings.Join(own, ", "), f.replicas)}
}

// hopeless tells of the requests that miss their first token's limit on an idle
// replica: no autoscaler can help them, and results are without them.
func hopeless(cases []backtest.Case, models []backtest.Model) (notes []string, err error) {
	type load struct{ trace, model string }
	counted, lost, left := map[load]int{}, map[load]int{}, 0
	limits := map[string]time.Duration{}
	for i := range models {
		limits[models[i].Name] = inWords(models[i].TTFTLimit)
	}
	var loads []load
	for i := range cases {
		c := &cases[i]
		l := load{c.Trace, c.Model}
		if _, ok := counted[l]; !ok {
			loads = append(loads, l)
		}
		counted[l] += c.Ours[0].Requests
		lost[l] += c.Ours[0].Hopeless
		left += c.Ours[0].Requests
	}
	for _, l := range loads {
		if all := counted[l] + lost[l]; float64(lost[l]) >= hopelessShare*float64(max(1, all)) {
			notes = append(notes, fmt.Sprintf("%s: %d of %d requests cannot meet %v to the first token on an idle %s and are not counted",
				l.trace, lost[l], all, limits[l.model], l.model))
		}
	}
	if len(notes) > 0 && left == 0 {
		return nil, fmt.Errorf("%s: nothing is left to judge by; give a longer --ttft, or another --model", strings.Join(notes, "; "))
	}
	return notes, nil
}

// hopelessShare is how many requests may be left out without a word.
const hopelessShare = 0.01
