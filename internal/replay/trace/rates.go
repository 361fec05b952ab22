// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"math"
	"time"
)

// Rate is an arrival rate in requests/s from a moment on.
type Rate struct {
	At        time.Time
	PerSecond float64
}

// Sampling describes how rates were recorded.
type Sampling struct {
	Step time.Duration // between two rates
	// Prompt and Output are the mean tokens of a request; 0: DefaultPrompt and DefaultOutput.
	Prompt, Output float64
}

// maxSteps is the highest number of steps of a trace: more than a year of seconds.
const maxSteps = 40_000_000

// FromRates makes a trace from rates in order of time, such as those of a monitoring
// system. Missing and invalid rates become gaps.
func FromRates(name string, rates []Rate, s Sampling) (*Trace, error) {
	if len(rates) < 2 || s.Step <= 0 {
		return nil, fmt.Errorf("%s: %d rates every %v: want at least 2", name, len(rates), s.Step)
	}
	if s.Prompt <= 0 {
		s.Prompt = DefaultPrompt
	}
	if s.Output <= 0 {
		s.Output = DefaultOutput
	}
	first, last := rates[0].At, rates[len(rates)-1].At
	n := int(last.Sub(first)/s.Step) + 1
	if n < 2 || n > maxSteps {
		return nil, fmt.Errorf("%s: rates from %v to %v: want 2 to %d steps of %v", name, first, last, maxSteps, s.Step)
	}
	t := &Trace{Name: name, Kind: Windows, Start: first, windows: make([]window, n)}
	for i := range t.windows {
		t.windows[i] = window{start: float64(i) * s.Step.Seconds(), interarrival: exponential, prompt: s.Prompt, output: s.Output, gap: true}
	}
	for _, r := range rates {
		i := int(r.At.Sub(first) / s.Step)
		if i < 0 || i >= n || math.IsNaN(r.PerSecond) || r.PerSecond < 0 || r.PerSecond > maxRate {
			continue
		}
		t.windows[i].rate, t.windows[i].gap = r.PerSecond, false
	}
	if err := t.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}
