// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"time"

	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
)

// Vector evaluates promql at a time. A scalar is a vector of one element without labels.
// Elements that are older than Config.MaxAge are left out, and so are histograms.
func (c *Client) Vector(ctx context.Context, promql string, at time.Time) (model.Vector, error) {
	v, err := c.run(ctx, func(ctx context.Context) (model.Value, error) {
		v, _, _, err := c.api.Query(ctx, promql, at, v1.WithTimeout(c.cfg.Timeout), v1.WithLookbackDelta(c.cfg.MaxAge))
		return v, err
	})
	if err != nil {
		return nil, err
	}
	var all model.Vector
	switch v := v.(type) {
	case *model.Scalar:
		all = model.Vector{{Metric: model.Metric{}, Value: v.Value, Timestamp: v.Timestamp}}
	case model.Vector:
		all = v
	case nil:
		return nil, newValueError("no_number", "the answer has no result")
	default:
		return nil, newValueError("no_number", "the query returns a %s: it must return an instant vector", v.Type())
	}
	out := all[:0]
	for _, s := range all {
		if s.Histogram == nil && at.Sub(s.Timestamp.Time()) <= c.cfg.MaxAge {
			out = append(out, s)
		}
	}
	return out, nil
}

// Series returns the labels of the series that a selector matches and that had samples
// between two times.
func (c *Client) Series(ctx context.Context, selector string, from, to time.Time) ([]model.LabelSet, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	out, _, _, err := c.api.Series(ctx, []string{selector}, from, to)
	switch {
	case ctx.Err() != nil:
		return nil, newTimeoutError(ctx, "no answer within %s", c.cfg.Timeout)
	case err != nil:
		return nil, newRequestError(err)
	}
	return out, nil
}
