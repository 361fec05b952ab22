// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"context"
	"fmt"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/client"
)

// Prometheus is a load that Prometheus, or a server with its API, has recorded.
type Prometheus struct {
	URL, Query     string
	HTTPConfig     string // file, as for the controller's --prometheus-http-config
	Length, Step   time.Duration
	Prompt, Output float64 // mean tokens of a request; 0: the defaults
	UserAgent      string
}

const (
	// queryPoints is the most points per query. Prometheus refuses more than 11,000 points
	// (web/api/v1, "exceeded maximum resolution").
	queryPoints = 10_000
	// responseLimit is the largest response of one query, in bytes.
	responseLimit = 64 << 20
)

// Read reads the history until now.
func (h *Prometheus) Read(ctx context.Context, now time.Time) (*Trace, error) {
	if h.Step < time.Second || h.Length < 2*h.Step {
		return nil, fmt.Errorf("--history %v in steps of %v: want at least two steps of a second or more", h.Length, h.Step)
	}
	client, err := client.New(client.Config{
		URL: h.URL, HTTPConfig: h.HTTPConfig, Timeout: time.Minute, MaxAnswer: responseLimit, UserAgent: h.UserAgent,
	})
	if err != nil {
		return nil, fmt.Errorf("--prometheus: %w", err)
	}
	begin := now.Add(-h.Length).Truncate(h.Step)
	var rates []Rate
	for from := begin; from.Before(now); from = from.Add(queryPoints * h.Step) {
		to := from.Add((queryPoints - 1) * h.Step)
		if to.After(now) {
			to = now
		}
		samples, err := client.Range(ctx, h.Query, from, to, h.Step)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", h.URL, err)
		}
		for _, s := range samples {
			rates = append(rates, Rate{At: s.At, PerSecond: s.Value})
		}
	}
	return FromRates("prometheus", rates, Sampling{Step: h.Step, Prompt: h.Prompt, Output: h.Output})
}
