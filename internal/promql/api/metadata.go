// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/gpupilot/gpupilot/internal/promql/engine"
)

// Metadata describes a metric.
type Metadata struct {
	Type string `json:"type"`
	Help string `json:"help"`
	Unit string `json:"unit"`
}

// suffixes are those of the series of histograms, summaries and, in OpenMetrics, of
// counters. Their families have the name without it.
var suffixes = []string{"_bucket", "_sum", "_count", "_total"}

// metadata answers with the description of the metrics that the viewer's series have.
func (a *API) metadata(r *http.Request, v Viewer) (any, annotations.Annotations, error) {
	limit, err := countParam(r, "limit")
	if err != nil {
		return nil, nil, err
	}
	perMetric, err := countParam(r, "limit_per_metric")
	if err != nil {
		return nil, nil, err
	}
	now := a.deps.Now()
	names, notes, err := a.deps.Engine.LabelValues(r.Context(), queryOf(v), model.MetricNameLabel,
		engine.Selection{From: now.Add(-a.deps.Window), To: now})
	if err != nil {
		return nil, nil, err
	}
	out := map[string][]Metadata{}
	only := r.FormValue("metric")
	for _, name := range names {
		if limit > 0 && len(out) == limit {
			break
		}
		family, list := a.describe(v, name)
		if len(list) > 0 && (only == "" || only == family) {
			if perMetric > 0 {
				list = list[:min(len(list), perMetric)]
			}
			out[family] = list
		}
	}
	return out, notes, nil
}

// describe returns the family of a series' name, with its descriptions.
func (a *API) describe(v Viewer, name string) (family string, list []Metadata) {
	if list = a.deps.Metadata(v, name); len(list) > 0 {
		return name, list
	}
	for _, suffix := range suffixes {
		if family, ok := strings.CutSuffix(name, suffix); ok {
			return family, a.deps.Metadata(v, family)
		}
	}
	return name, nil
}
