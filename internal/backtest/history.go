// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"cmp"
	"errors"
	"time"

	"github.com/gpupilot/gpupilot/internal/policy"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/service"
	"github.com/gpupilot/gpupilot/internal/trace"
	"github.com/gpupilot/gpupilot/internal/webui"
)

// History is what the controller recorded of a workload, second by second.
type History struct {
	Name   string
	Policy policy.Compiled
	Points []webui.Point
}

// Trace returns a load that needs as many replicas as the recorded signals asked for, at
// the policy's targets. Its requests have these mean tokens (0: the defaults), because the
// real ones are unknown.
func (h *History) Trace(m *service.Model, prompt, output float64) (*trace.Trace, error) {
	prompt, output = cmp.Or(prompt, trace.DefaultPrompt), cmp.Or(output, trace.DefaultOutput)
	capacity := m.Capacity(prompt, output)
	var rates []trace.Rate
	for i := range h.Points {
		p := &h.Points[i]
		if need, ok := h.need(p); ok {
			rates = append(rates, trace.Rate{At: p.Time.Truncate(time.Second), PerSecond: need * capacity})
		}
	}
	if len(rates) < 2 {
		return nil, errors.New("the controller has recorded too few values: try again in a minute, or use --prometheus")
	}
	return trace.FromRates(h.Name, rates, trace.Sampling{Step: time.Second, Prompt: prompt, Output: output})
}

// need returns the most replicas that a signal asked for at a second; ok is false if no
// signal had a value.
func (h *History) need(p *webui.Point) (need float64, ok bool) {
	for i, v := range p.Signals {
		if v == nil || i >= len(h.Policy.Policy.Signals) {
			continue
		}
		signal := &h.Policy.Policy.Signals[i]
		replicas := *v / signal.Target
		if signal.Type == scale.Value || h.Policy.Sources[i].Kind != policy.Query {
			replicas *= float64(p.Serving)
		}
		need, ok = max(need, replicas), true
	}
	return need, ok
}
