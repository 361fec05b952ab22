// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"math"
	"time"
)

// Rate is a load of requests/s from a moment on.
type Rate struct {
	At        time.Time
	PerSecond float64
}

// FromRates makes a trace of rates that were read every step, in order of time,
// such as those of a monitoring system. Where one is missing or no number,
// nothing is known. prompt and output are the mean tokens of a request; 0: those
// of a trace without tokens.
func FromRates(name string, rates []Rate, step time.Duration, prompt, output float64) (*Trace, error) {
	if len(rates) < 2 || step <= 0 {
		return nil, fmt.Errorf("%s: %d rates every %v: want at least 2", name, len(rates), step)
	}
	if prompt <= 0 {
		prompt = DefaultPrompt
	}
	if output <= 0 {
		output = DefaultOutput
	}
	n := int(rates[len(rates)-1].At.Sub(rates[0].At)/step) + 1
	if n < 2 || n > maxRows {
		return nil, fmt.Errorf("%s: rates from %v to %v", name, rates[0].At, rates[len(rates)-1].At)
	}
	t := &Trace{Name: name, Kind: Windows, windows: make([]window, n)}
	for i := range t.windows {
		t.windows[i] = window{start: float64(i) * step.Seconds(), law: exponential, prompt: prompt, output: output, gap: true}
	}
	for _, r := range rates {
		i := int(r.At.Sub(rates[0].At) / step)
		if i < 0 || i >= n || math.IsNaN(r.PerSecond) || math.IsInf(r.PerSecond, 0) || r.PerSecond < 0 || r.PerSecond > 1e7 {
			continue
		}
		t.windows[i].rate, t.windows[i].gap = r.PerSecond, false
	}
	if err := t.finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}
