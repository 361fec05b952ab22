// SPDX-License-Identifier: Apache-2.0

// Package gpuquery asks a Prometheus for GPU metrics, as a source of package check.
package gpuquery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/common/model"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/loadgen/check"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
	"github.com/gpupilot/gpupilot/internal/promql/client"
)

// Source is a PromQL query.
type Source struct {
	query  string
	client *client.Client
}

// New reads URL?query=PROMQL. The query may be percent-encoded or not.
func New(text, userAgent string) (*Source, error) {
	address, query, ok := strings.Cut(text, "?query=")
	if decoded, err := url.QueryUnescape(query); err == nil && strings.Contains(query, "%") {
		query = decoded
	}
	if !ok || query == "" {
		return nil, fmt.Errorf("prom=%s: want prom=URL?query=PROMQL", text)
	}
	c, err := client.New(client.Config{URL: strings.TrimSuffix(address, "/api/v1/query"), MaxAnswer: 4 << 20, UserAgent: userAgent})
	return &Source{query, c}, err
}

// Name returns the query.
func (s *Source) Name() string { return "prom=" + s.query }

// Read evaluates the query. A value without a metric's name is in the unit of the load's field, of which there must be one.
func (s *Source) Read(ctx context.Context, want func(gpu.FieldID) bool) (check.Values, error) {
	vector, err := s.client.Vector(ctx, s.query, time.Now())
	if err != nil {
		return nil, err
	}
	wanted := map[gpu.FieldID]bool{}
	for _, k := range load.Kinds() {
		if want(k.Field) {
			wanted[k.Field] = true
		}
	}
	values := check.Values{}
	for _, sample := range vector {
		label := func(name string) string { return string(sample.Metric[model.LabelName(name)]) }
		v := float64(sample.Value)
		if math.IsNaN(v) || math.IsInf(v, 0) || len(values) >= check.MaxGPUs {
			continue
		}
		uuid := check.UUIDOf(label)
		if name := label(model.MetricNameLabel); name != "" {
			if ref, ok := names.Metric(name); ok && want(ref.Field) {
				values[check.Key{UUID: uuid, Field: ref.Field}] = v * ref.Scale
			}
			continue
		}
		if len(wanted) > 1 {
			return nil, errors.New("a query whose result has no metric name can be compared with one load only")
		}
		for field := range wanted {
			values[check.Key{UUID: uuid, Field: field}] = v
		}
	}
	return values, nil
}
