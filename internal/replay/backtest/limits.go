// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

// Limits are latency limits of a request. 0 means the limit of the policies, and if they
// have none or differ, that of the model. A limit between two edges of the server's histograms
// is moved to the higher one, from which on a server counts misses.
type Limits struct {
	TTFT time.Duration // to the first token
	ITL  time.Duration // between tokens
}

// latencyLimit is one of the limits.
type latencyLimit struct {
	flag, text string
	given      time.Duration // 0: not given
	ofSignal   func(*scale.Signal) float64
	ofModel    func(*service.Model) *float64 // seconds
	edge       func(limit float64) float64
}

func (l Limits) all() []latencyLimit {
	return []latencyLimit{
		{
			"--ttft", "to the first token", l.TTFT, func(s *scale.Signal) float64 { return s.FirstLimit },
			func(m *service.Model) *float64 { return &m.TTFTLimit }, service.FirstTokenEdge,
		},
		{
			"--itl", "between tokens", l.ITL, func(s *scale.Signal) float64 { return s.Limit },
			func(m *service.Model) *float64 { return &m.ITLLimit }, service.TokenEdge,
		},
	}
}

// Apply sets the limits of the models. It returns a note per model with the limits and
// their origin. It returns an error if not even an idle replica can meet a limit.
func (l Limits) Apply(models []service.Model, policies []policy.Named) (notes []string, err error) {
	for i := range models {
		m := &models[i]
		var texts []string
		for _, x := range l.all() {
			origin := x.set(m, policies)
			given := *x.ofModel(m)
			if idle := m.IdleTokenSeconds(); given < idle {
				return nil, fmt.Errorf("%v %s (%s): on an idle %s a request takes %v; give a longer %s, or another --model",
					seconds(given), x.text, origin, m.Name, seconds(idle), x.flag)
			}
			if edge := x.edge(given); edge != given {
				*x.ofModel(m), origin = edge, fmt.Sprintf("%s, %v, which lies between two edges of the server's histogram", origin, seconds(given))
			}
			texts = append(texts, fmt.Sprintf("%v %s (%s)", seconds(*x.ofModel(m)), x.text, origin))
		}
		notes = append(notes, fmt.Sprintf("limits on %s: %s", m.Name, strings.Join(texts, ", ")))
	}
	return notes, nil
}

// set sets the limit of the model, and returns its origin.
func (l *latencyLimit) set(m *service.Model, policies []policy.Named) (origin string) {
	if l.given > 0 {
		*l.ofModel(m) = l.given.Seconds()
		return l.flag
	}
	value, differ := l.common(policies)
	switch {
	case differ:
		return "the model's, as the policies' differ; " + l.flag + " sets it"
	case value > 0:
		*l.ofModel(m) = value
		return "the policy's slo"
	}
	return "the model's"
}

// common returns the limit that all policies with a limit share; 0: no policy has one.
func (l *latencyLimit) common(policies []policy.Named) (value float64, differ bool) {
	for i := range policies {
		for k := range policies[i].Policy.Signals {
			x := l.ofSignal(&policies[i].Policy.Signals[k])
			if x > 0 && value > 0 && x != value {
				return 0, true
			}
			value = max(value, x)
		}
	}
	return value, false
}
