// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/backtest"
	"github.com/gpupilot/gpupilot/internal/promq"
)

// history is a load that Prometheus, or what speaks its API, has recorded.
type history struct {
	url, query     string
	httpConfig     string // file; as the controller's --prometheus-http-config
	length, step   time.Duration
	prompt, output float64 // mean tokens of a request
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
	client, err := promq.New(promq.Config{
		URL: h.url, HTTPConfig: h.httpConfig, Timeout: time.Minute, MaxAnswer: answerLimit, UserAgent: "gpupilot/" + version,
	})
	if err != nil {
		return nil, fmt.Errorf("--prometheus: %w", err)
	}
	begin := now.Add(-h.length).Truncate(h.step)
	var rates []backtest.Rate
	for from := begin; from.Before(now); from = from.Add(rangePoints * h.step) {
		to := from.Add((rangePoints - 1) * h.step)
		if to.After(now) {
			to = now
		}
		part, err := client.Range(ctx, h.query, from, to, h.step)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", h.url, err)
		}
		for _, s := range part {
			rates = append(rates, backtest.Rate{At: s.At, PerSecond: s.Value})
		}
	}
	return backtest.FromRates("prometheus", rates, h.step, h.prompt, h.output)
}
