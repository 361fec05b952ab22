// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
)

// history is a load that Prometheus, or what speaks its API, has recorded.
type history struct {
	url, query     string
	length, step   time.Duration
	prompt, output float64 // mean tokens of a request
	client         *http.Client
}

const (
	// rangePoints is below the 11,000 points to which Prometheus limits a range
	// query (web/api/v1, "exceeded maximum resolution").
	rangePoints = 10_000
	// answerLimit bounds what is read of one answer, in bytes.
	answerLimit = 64 << 20
)

// trace reads the history up to now.
func (h history) trace(ctx context.Context, now time.Time) (*backtest.Trace, error) {
	if h.step < time.Second || h.length < 2*h.step {
		return nil, fmt.Errorf("--history %v in steps of %v: want at least two steps of a second or more", h.length, h.step)
	}
	begin := now.Add(-h.length).Truncate(h.step)
	var rates []backtest.Rate
	for from := begin; from.Before(now); from = from.Add(rangePoints * h.step) {
		to := from.Add((rangePoints - 1) * h.step)
		if to.After(now) {
			to = now
		}
		part, err := h.part(ctx, from, to)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", h.url, err)
		}
		rates = append(rates, part...)
	}
	return backtest.FromRates("prometheus", rates, h.step, h.prompt, h.output)
}

func (h history) part(ctx context.Context, from, to time.Time) ([]backtest.Rate, error) {
	u, err := url.Parse(h.url)
	if err != nil {
		return nil, err
	}
	u = u.JoinPath("api/v1/query_range")
	u.RawQuery = url.Values{
		"query": {h.query}, "step": {strconv.FormatFloat(h.step.Seconds(), 'f', -1, 64)},
		"start": {strconv.FormatInt(from.Unix(), 10)}, "end": {strconv.FormatInt(to.Unix(), 10)},
	}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return readMatrix(io.LimitReader(res.Body, answerLimit))
}

// readMatrix reads the answer to a range query, which must be one series.
func readMatrix(r io.Reader) ([]backtest.Rate, error) {
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     []struct{ Values [][2]any }
		}
	}
	if err := json.NewDecoder(r).Decode(&answer); err != nil {
		return nil, fmt.Errorf("the answer is not Prometheus's: %w", err)
	}
	switch {
	case answer.Status != "success":
		return nil, fmt.Errorf("%s: %s", answer.Status, answer.Error)
	case answer.Data.ResultType != "matrix":
		return nil, fmt.Errorf("a %s is no range of values", answer.Data.ResultType)
	case len(answer.Data.Result) > 1:
		return nil, fmt.Errorf("%d series: sum them, so that there is one", len(answer.Data.Result))
	case len(answer.Data.Result) == 0:
		return nil, nil
	}
	out := make([]backtest.Rate, 0, len(answer.Data.Result[0].Values))
	for _, v := range answer.Data.Result[0].Values {
		at, ok := v[0].(float64)
		text, isText := v[1].(string)
		rate, err := strconv.ParseFloat(text, 64)
		if !ok || !isText || err != nil || math.Abs(at) > 1e11 {
			return nil, errors.New("a value is not a time and a number")
		}
		out = append(out, backtest.Rate{At: time.UnixMilli(int64(math.Round(at * 1000))), PerSecond: rate})
	}
	return out, nil
}
