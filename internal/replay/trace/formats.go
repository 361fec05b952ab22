// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"strconv"
	"time"
)

const (
	// maxDuration is ten years in seconds.
	maxDuration = 10 * 365 * 24 * 3600
	// maxTimestamp is the end of the year 9999 in seconds since 1970. A larger number is
	// not in seconds.
	maxTimestamp = 253402300799
)

func (t *Trace) readRequest(in *Table) error {
	ms, err := in.Required("t_ms", maxTimestamp*1000)
	if err != nil {
		return err
	}
	output, err := in.Required("output_tokens", maxTokens)
	if err != nil {
		return err
	}
	prompt, err := in.Required("prompt_tokens", maxTokens)
	if err != nil {
		return err
	}
	t.requests = append(t.requests, Request{At: ms / 1000, Prompt: max(1, prompt), Output: max(1, output)})
	return nil
}

// readCount stores the count as the rate. finish divides it by the width of the row.
func (t *Trace) readCount(in *Table) error {
	start, err := t.readLater(in)
	if err != nil {
		return err
	}
	w := window{start: start, interarrival: uniform}
	if w.rate, err = in.Required("requests", maxCount); err != nil {
		return err
	}
	prompt, err := in.Number("prompt_tokens", 1e15, w.rate*DefaultPrompt)
	if err != nil {
		return err
	}
	output, err := in.Number("output_tokens", 1e15, w.rate*DefaultOutput)
	if err != nil {
		return err
	}
	w.prompt, w.output = perRequest(prompt, w.rate), perRequest(output, w.rate)
	t.windows = append(t.windows, w)
	return nil
}

// perRequest returns a request's mean tokens, from the sum over n requests.
func perRequest(sum, n float64) float64 {
	if n <= 0 {
		return 1
	}
	return min(max(1, sum/n), maxTokens)
}

func (t *Trace) readCoarse(in *Table) error {
	start, err := t.readLater(in)
	if err != nil {
		return err
	}
	count, err := in.Required("count_in_5min", maxCount)
	if err != nil {
		return err
	}
	t.windows = append(t.windows, window{
		start: start, rate: count / 300, interarrival: exponential, prompt: DefaultPrompt, output: DefaultOutput,
	})
	return nil
}

// readWindow reads a window of a Gamma renewal process. The shape is 1/cv², where cv is
// the coefficient of variation of the interarrival times.
func (t *Trace) readWindow(in *Table) error {
	start, err := t.readLater(in)
	if err != nil {
		return err
	}
	w := window{start: start, interarrival: gammaDistribution}
	gap, err := in.Number("gap", 1, 0)
	if err != nil {
		return err
	}
	if w.gap = gap != 0; w.gap {
		t.windows = append(t.windows, w)
		return nil
	}
	if w.rate, err = in.Required("rate_rps", maxRate); err != nil {
		return err
	}
	cv, err := in.Number("iat_cv_rate_weighted", 1e3, 1)
	if err != nil {
		return err
	}
	w.shape = 1 / max(0.1, cv) / max(0.1, cv)
	return t.readTokens(in, w)
}

// readTokens appends the window with its mean tokens.
func (t *Trace) readTokens(in *Table, w window) (err error) {
	if w.prompt, err = in.Number("prompt_tokens_mean", maxTokens, DefaultPrompt); err != nil {
		return err
	}
	if w.output, err = in.Number("output_tokens_mean", maxTokens, DefaultOutput); err != nil {
		return err
	}
	w.prompt, w.output = max(1, w.prompt), max(1, w.output)
	t.windows = append(t.windows, w)
	return nil
}

// readClient reads the window of one client. An empty rate means that the client sent
// nothing.
func (t *Trace) readClient(in *Table) error {
	start, err := readTime(in)
	if err != nil {
		return err
	}
	w := window{start: start}
	if w.rate, err = in.Number("rate_rps", maxRate, 0); err != nil {
		return err
	}
	if w.interarrival, w.shape, err = readDistribution(in, w.rate); err != nil {
		return err
	}
	return t.readTokens(in, w)
}

// The range of the shapes of Gamma and Weibull distributions.
const leastShape, mostShape = 1e-3, 1e9

// readDistribution reads iat_dist and its shape p1. Both are required unless the rate is 0.
func readDistribution(in *Table, rate float64) (d distribution, shape float64, err error) {
	const known = "want Gamma, Weibull or Exponential"
	switch name := in.Text("iat_dist"); name {
	case "Exponential":
		return exponential, 0, nil
	case "Gamma", "Weibull":
		shape, err = strconv.ParseFloat(in.Text("p1"), 64)
		if rate > 0 && (err != nil || !(shape >= leastShape && shape <= mostShape)) {
			return 0, 0, in.Errorf("p1", "%q is not a shape of %s: want %g to %g", Excerpt(in.Text("p1")), name, leastShape, mostShape)
		}
		if name == "Gamma" {
			return gammaDistribution, shape, nil
		}
		return weibull, shape, nil
	case "":
		if rate > 0 {
			return 0, 0, in.Errorf("iat_dist", "no distribution for a rate of %g: %s, or a rate of 0", rate, known)
		}
		return exponential, 0, nil
	default:
		return 0, 0, in.Errorf("iat_dist", "%q is not a known distribution: %s", Excerpt(name), known)
	}
}

// readTime reads the cell of t_s: seconds since any moment, such as the Unix epoch, or a
// timestamp. Only differences between rows matter.
func readTime(in *Table) (float64, error) {
	cell := in.Text("t_s")
	if x, err := strconv.ParseFloat(cell, 64); err == nil && x >= 0 && x <= maxTimestamp {
		return x, nil
	}
	if at, err := time.Parse(time.RFC3339, cell); err == nil {
		return float64(at.Unix()) + float64(at.Nanosecond())/1e9, nil
	}
	return 0, in.Errorf("t_s", "%q is not a time: want seconds since the first row or since 1970, or a timestamp such as 2026-01-02T15:04:05Z", Excerpt(cell))
}

// readLater reads t_s of a row that must be after the row before it.
func (t *Trace) readLater(in *Table) (at float64, err error) {
	if at, err = readTime(in); err != nil || len(t.windows) == 0 {
		return at, err
	}
	cell := Excerpt(in.Text("t_s"))
	switch previous := t.windows[len(t.windows)-1].start; {
	case at == previous:
		return 0, in.Errorf("t_s", "%q is also the time of the row above: want one row per time, with the sum of all requests", cell)
	case at < previous:
		return 0, in.Errorf("t_s", "%q is before the time of the row above: sort the rows by t_s, because a row lasts until the next one", cell)
	}
	return at, nil
}
