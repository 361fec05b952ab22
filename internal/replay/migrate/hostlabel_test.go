// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRulesWithTheOldHostLabel(t *testing.T) {
	report, err := Adapter([]byte(`
rules:
- seriesQuery: 'DCGM_FI_DEV_GPU_UTIL{Hostname!=""}'
  resources: {overrides: {Hostname: {resource: node}}}
  metricsQuery: 'avg by (<<.GroupBy>>) (<<.Series>>{<<.LabelMatchers>>})'
---
groups: [{rules: [{alert: Hot, expr: 'max by (Hostname) (DCGM_FI_DEV_GPU_TEMP) > 90'}, {alert: Warm, expr: 'DCGM_FI_DEV_GPU_TEMP > 80'}]}]
`), Options{Recorded: map[string]string{"node:gpu": `avg by (Hostname) (DCGM_FI_DEV_GPU_UTIL)`, "other": `avg by (hostname) (DCGM_FI_DEV_GPU_UTIL)`}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"recording rule node:gpu: avg by (Hostname) merges the GPUs of all nodes, because the agents' label is hostname: use hostname, or start the agents with --profile 4.8.2",
		"alert Hot: max by (Hostname) merges the GPUs of all nodes, because the agents' label is hostname: use hostname, or start the agents with --profile 4.8.2",
		"rules[0]: the label Hostname of nodes selects no series, because the agents' label is hostname: use hostname, or start the agents with --profile 4.8.2",
	}
	if diff := cmp.Diff(want, report.Warnings); diff != "" {
		t.Error(diff)
	}
}
