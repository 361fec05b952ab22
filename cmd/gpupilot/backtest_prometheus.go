// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/client"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

// prometheusHistory is a load that Prometheus, or a server with its API, has recorded.
type prometheusHistory struct {
	url, query     string
	httpConfig     string // file, as for the controller's --prometheus-http-config
	length, step   time.Duration
	prompt, output float64 // mean tokens of a request; 0: the defaults
}

const (
	// queryPoints is the most points per query. Prometheus refuses more than 11,000 points
	// (web/api/v1, "exceeded maximum resolution").
	queryPoints = 10_000
	// responseLimit is the largest response of one query, in bytes.
	responseLimit = 64 << 20
)

// trace reads the history until now.
func (h prometheusHistory) trace(ctx context.Context, now time.Time) (*trace.Trace, error) {
	if h.step < time.Second || h.length < 2*h.step {
		return nil, fmt.Errorf("--history %v in steps of %v: want at least two steps of a second or more", h.length, h.step)
	}
	client, err := client.New(client.Config{
		URL: h.url, HTTPConfig: h.httpConfig, Timeout: time.Minute, MaxAnswer: responseLimit, UserAgent: "gpupilot/" + version,
	})
	if err != nil {
		return nil, fmt.Errorf("--prometheus: %w", err)
	}
	begin := now.Add(-h.length).Truncate(h.step)
	var rates []trace.Rate
	for from := begin; from.Before(now); from = from.Add(queryPoints * h.step) {
		to := from.Add((queryPoints - 1) * h.step)
		if to.After(now) {
			to = now
		}
		samples, err := client.Range(ctx, h.query, from, to, h.step)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", h.url, err)
		}
		for _, s := range samples {
			rates = append(rates, trace.Rate{At: s.At, PerSecond: s.Value})
		}
	}
	return trace.FromRates("prometheus", rates, trace.Sampling{Step: h.step, Prompt: h.prompt, Output: h.output})
}
