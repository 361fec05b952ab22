// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"strconv"
	"strings"
)

const (
	// maxTime is ten years in seconds.
	maxTime = 10 * 365 * 24 * 3600
	// lastTime is the end of the year 9999 in seconds since 1970: what is more is not
	// in seconds.
	lastTime = 253402300799
)

func (t *table) requestRow(out *Trace) error {
	var ms, prompt, output float64
	if err := t.numbers(lastTime*1000, map[string]*float64{"t_ms": &ms}); err != nil {
		return err
	}
	if err := t.numbers(maxTokens, map[string]*float64{"prompt_tokens": &prompt, "output_tokens": &output}); err != nil {
		return err
	}
	out.requests = append(out.requests, Request{At: ms / 1000, Prompt: max(1, prompt), Output: max(1, output)})
	return nil
}

// countRow leaves in rate the count; finish divides it by the row's width.
func (t *table) countRow(out *Trace) error {
	start, err := t.later(out)
	if err != nil {
		return err
	}
	w := window{start: start, law: uniform}
	if err := t.numbers(1e9, map[string]*float64{"requests": &w.rate}); err != nil {
		return err
	}
	prompt, err := t.number("prompt_tokens", 1e15, w.rate*DefaultPrompt)
	if err != nil {
		return err
	}
	output, err := t.number("output_tokens", 1e15, w.rate*DefaultOutput)
	if err != nil {
		return err
	}
	w.prompt, w.output = perRequest(prompt, w.rate), perRequest(output, w.rate)
	out.windows = append(out.windows, w)
	return nil
}

func perRequest(sum, n float64) float64 {
	if n <= 0 {
		return 1
	}
	return min(max(1, sum/n), maxTokens)
}

func (t *table) coarseRow(out *Trace) error {
	start, err := t.later(out)
	if err != nil {
		return err
	}
	w := window{start: start, law: exponential, prompt: DefaultPrompt, output: DefaultOutput}
	if err := t.numbers(1e9, map[string]*float64{"count_in_5min": &w.rate}); err != nil {
		return err
	}
	w.rate /= 300
	out.windows = append(out.windows, w)
	return nil
}

// windowRow's coefficient of variation makes a Gamma renewal process: its shape
// is 1/cv².
func (t *table) windowRow(out *Trace) error {
	start, err := t.later(out)
	if err != nil {
		return err
	}
	w := window{start: start, law: gammaLaw}
	gap, err := t.number("gap", 1, 0)
	if err != nil {
		return err
	}
	if w.gap = gap != 0; w.gap {
		out.windows = append(out.windows, w)
		return nil
	}
	if err := t.numbers(1e7, map[string]*float64{"rate_rps": &w.rate}); err != nil {
		return err
	}
	cv, err := t.number("iat_cv_rate_weighted", 1e3, 1)
	if err != nil {
		return err
	}
	w.shape = 1 / max(0.1, cv) / max(0.1, cv)
	return t.windowTokens(out, w)
}

func (t *table) windowTokens(out *Trace, w window) (err error) {
	if w.prompt, err = t.number("prompt_tokens_mean", maxTokens, DefaultPrompt); err != nil {
		return err
	}
	if w.output, err = t.number("output_tokens_mean", maxTokens, DefaultOutput); err != nil {
		return err
	}
	w.prompt, w.output = max(1, w.prompt), max(1, w.output)
	out.windows = append(out.windows, w)
	return nil
}

// clientRow is one client's window. One without a rate sent nothing.
func (t *table) clientRow(out *Trace) error {
	start, err := t.time()
	if err != nil {
		return err
	}
	w := window{start: start}
	if w.rate, err = t.number("rate_rps", 1e7, 0); err != nil {
		return err
	}
	if w.law, w.shape, err = t.arrivalLaw(w.rate); err != nil {
		return err
	}
	return t.windowTokens(out, w)
}

// The shapes of Gamma and Weibull that can be drawn from.
const leastShape, mostShape = 1e-3, 1e9

// arrivalLaw reads iat_dist and its shape p1. Only a client that sent nothing may
// have none.
func (t *table) arrivalLaw(rate float64) (l law, shape float64, err error) {
	const laws = "want Gamma, Weibull or Exponential"
	switch dist := t.cell("iat_dist"); dist {
	case "Exponential":
		return exponential, 0, nil
	case "Gamma", "Weibull":
		shape, err = strconv.ParseFloat(t.cell("p1"), 64)
		if rate > 0 && (err != nil || !(shape >= leastShape && shape <= mostShape)) {
			return 0, 0, t.fault("p1", fmt.Sprintf("%q is no shape of %s: want %g to %g", clip(t.cell("p1")), dist, leastShape, mostShape))
		}
		if dist == "Gamma" {
			return gammaLaw, shape, nil
		}
		return weibull, shape, nil
	case "":
		if rate > 0 {
			return 0, 0, t.fault("iat_dist", fmt.Sprintf("%q is no law of arrivals for a rate of %g: %s, or no rate", dist, rate, laws))
		}
		return exponential, 0, nil
	default:
		return 0, 0, t.fault("iat_dist", fmt.Sprintf("%q is no law of arrivals: %s", clip(dist), laws))
	}
}

// cell is a column's text in this row.
func (t *table) cell(column string) string { return strings.TrimSpace(t.record[t.column[column]]) }
