// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/window/history"
)

// familyOf finds the family whose query of the mean contains a text.
func familyOf(t *testing.T, text string) *history.Family {
	t.Helper()
	all := BackfillFamilies()
	i := slices.IndexFunc(all, func(f history.Family) bool { return strings.Contains(f.Mean, text) })
	if i < 0 {
		t.Fatalf("no query with %s", text)
	}
	return &all[i]
}

// Whoever writes series into the Prometheus chooses their labels.
func TestBackfillIdentifiesItsSeriesOnly(t *testing.T) {
	f := func(text, want string, pairs ...string) {
		t.Helper()
		l := map[string]string{"namespace": "ml", "name": "chat"}
		for i := 0; i < len(pairs); i += 2 {
			l[pairs[i]] = pairs[i+1]
		}
		got := ""
		if w, m, ok := familyOf(t, text).Identify(l); ok {
			got = w.String() + " " + string(m)
		}
		if got != want {
			t.Errorf("%s of %v is %q, want %q", text, l, got, want)
		}
	}
	f(replicasName, "GPUAutoscaler ml/chat replicas/serving", "state", "serving")
	f(replicasName, "")
	f(signalValueName, "GPUAutoscaler ml/chat signal/a|%|replica", "signal", "a", "unit", "%", "per", "replica")
	f(signalValueName, "", "unit", "%")
	f(requestsName, "GPUAutoscaler ml/chat requests/vllm", "signal", "vllm")
	f(podsSumName, "GPUAutoscaler ml/chat pods/m", "metric", "m")
	f(gpusName+"[", "GPUAutoscaler ml/chat gpus/allocated")
	f("gpupilot_workload_gpus", "Deployment ml/chat gpus/active", "kind", "Deployment", "in_use", "active")
	f("gpupilot_workload_gpus", "", "kind", "Deployment", "in_use", "other")
	f("gpupilot_workload_gpus", "", "kind", "GPUAutoscaler", "in_use", "active")
	f("gpupilot_workload_gpu_utilization", "Deployment ml/chat active/DCGM_FI_DEV_GPU_UTIL", "kind", "Deployment", "in_use", "active", fieldLabel, "DCGM_FI_DEV_GPU_UTIL")
	f("gpupilot_workload_gpu_utilization", "", "kind", "Deployment", "in_use", "", fieldLabel, "DCGM_FI_DEV_GPU_UTIL")
	f("gpupilot_workload_gpu_utilization", "", "kind", "Namespace", "in_use", "active", fieldLabel, "DCGM_FI_DEV_GPU_UTIL")
	f("gpupilot_namespace_gpu_utilization", "Namespace ml/ml gpu/DCGM_FI_DEV_FB_USED", "kind", "Deployment", "in_use", "allocated", fieldLabel, "DCGM_FI_DEV_FB_USED")
}

func TestBackfillAsksValidQueries(t *testing.T) {
	p := parser.NewParser(parser.Options{})
	n := 0
	for _, f := range BackfillFamilies() {
		for _, q := range []string{f.Mean, f.Max, f.Sum} {
			if q == "" {
				continue
			}
			n++
			if _, err := p.ParseExpr(q); err != nil {
				t.Errorf("%s: %v", q, err)
			}
		}
	}
	if n != 20 { // docs/history.md says how many there are in 14 days
		t.Errorf("%d queries", n)
	}
}
