// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/usage"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// fieldLabel is the label with the field of a series, which the queries of BackfillFamilies
// add. It begins with underscores, as labels that no target has.
const fieldLabel = "__field"

// BackfillFamilies are the series of /metrics as a Prometheus has scraped them, from which
// the minutes follow that MinuteSeries continues. All replicas of the controller have about
// the same values: the mean of their means is taken.
func BackfillFamilies() []history.Family {
	return append([]history.Family{
		autoscalerFamily(replicasName, []string{"state"}, func(l map[string]string) history.Metric {
			return namedMetric(history.GroupReplicas, l["state"])
		}),
		autoscalerFamily(signalValueName, []string{"signal", "unit", "per"}, func(l map[string]string) history.Metric {
			if l["signal"] == "" {
				return ""
			}
			return history.NewSignal(l["signal"], l["unit"], l["per"])
		}),
		autoscalerFamily(requestsName, []string{"signal"}, func(l map[string]string) history.Metric {
			return namedMetric(history.GroupRequests, l["signal"])
		}),
		autoscalerFamily(podsSumName, []string{"metric"}, func(l map[string]string) history.Metric {
			return namedMetric(history.GroupPods, l["metric"])
		}),
		autoscalerFamily(gpusName, nil, func(map[string]string) history.Metric { return minuteAllocated }),
	}, slices.Concat(aggregateFamilies(usage.Namespace), aggregateFamilies(usage.Workload))...)
}

// namedMetric returns a metric, or none without a group or a name.
func namedMetric(group, name string) history.Metric {
	if group == "" || name == "" {
		return ""
	}
	return history.NewMetric(group, name)
}

// autoscalerFamily is a metric of GPUAutoscalers. metric returns "" for other series.
func autoscalerFamily(name string, labels []string, metric func(map[string]string) history.Metric) history.Family {
	by := strings.Join(append([]string{"namespace", "name"}, labels...), ", ")
	return history.Family{
		Mean: fmt.Sprintf("avg by (%s) (avg_over_time(%s[1m]))", by, name),
		Max:  fmt.Sprintf("max by (%s) (max_over_time(%s[1m]))", by, name),
		Identify: func(l map[string]string) (history.Workload, history.Metric, bool) {
			m := metric(l)
			return history.Workload{Namespace: l["namespace"], Kind: view.AutoscalerKind, Name: l["name"]}, m, m != ""
		},
	}
}

// aggregateFamilies are the aggregates over the GPUs of workloads or of namespaces. One
// query asks for a statistic of all fields.
func aggregateFamilies(scope usage.Scope) []history.Family {
	by := strings.Join(append(scope.Labels(), "in_use"), ", ")
	fields := func(aggregate, function, stat string) string {
		var parts []string
		for _, f := range usage.Families() {
			if field, ok := gpu.Lookup(f.Field); ok {
				// Divided, a value of GPUs is in the unit of the field.
				parts = append(parts, fmt.Sprintf("label_replace(%s by (%s) (%s(%s{stat=%q}[1m])) / %g, %q, %q, \"\", \"\")",
					aggregate, by, function, f.Name(scope), stat, f.Scale, fieldLabel, field.Name))
			}
		}
		return strings.Join(parts, " or ")
	}
	identify := func(metric func(l map[string]string) history.Metric) func(map[string]string) (history.Workload, history.Metric, bool) {
		return func(l map[string]string) (history.Workload, history.Metric, bool) {
			w := history.Workload{Namespace: l["namespace"], Kind: l["kind"], Name: l["name"]}
			if scope == usage.Namespace {
				w.Kind, w.Name = namespaceKind, w.Namespace
			}
			m := metric(l)
			return w, m, m != "" && (scope == usage.Namespace || w.Kind != namespaceKind && w.Kind != view.AutoscalerKind)
		}
	}
	return []history.Family{
		{
			Mean: fmt.Sprintf("avg by (%s) (avg_over_time(%s[1m]))", by, scope.GPUs()),
			Max:  fmt.Sprintf("max by (%s) (max_over_time(%s[1m]))", by, scope.GPUs()),
			Identify: identify(func(l map[string]string) history.Metric {
				if groupInUse(l["in_use"]) == "" {
					return ""
				}
				return namedMetric(history.GroupGPUs, l["in_use"])
			}),
		},
		{
			Mean: fields("avg", "avg_over_time", "avg"),
			Max:  fields("max", "max_over_time", "max"),
			Sum:  fields("avg", "avg_over_time", "sum"),
			Identify: identify(func(l map[string]string) history.Metric {
				return namedMetric(groupInUse(l["in_use"]), l[fieldLabel])
			}),
		},
	}
}
