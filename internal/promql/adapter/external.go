// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"context"
	"errors"

	"github.com/prometheus/common/model"

	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// External is the externalRules of a Server as external metrics.
type External struct{ server *Server }

// ExternalSource returns the externalRules as external metrics.
func (s *Server) ExternalSource() External { return External{s} }

// Names returns the names of the metrics, sorted.
func (e External) Names() []string { return e.server.ExternalMetrics() }

// Has reports whether there is a metric of this name. Every namespace has it.
func (e External) Has(_, metric string) bool { return e.server.HasExternal(metric) }

// Values returns the values of a metric. The selector is in its query, whose results may
// lack the selected labels.
func (e External) Values(ctx context.Context, q source.ExternalQuery) (out []source.ExternalValue, err error) {
	samples, err := e.server.External(ctx, q.Metric, q.Namespace, q.Selector, q.Now)
	switch {
	case errors.Is(err, ErrUnknown), errors.Is(err, ErrRequest):
		return nil, err
	case err != nil:
		return nil, errors.New("its query failed; the log of the controller has the reason")
	}
	for i := range samples {
		set := samples[i].Labels.Map()
		delete(set, model.MetricNameLabel)
		out = append(out, source.ExternalValue{Labels: set, Value: samples[i].Value, At: samples[i].At})
	}
	return out, nil
}
