// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

// policyFile writes a policy on running requests.
func policyFile(t *testing.T, file, name string, least, most int) string {
	t.Helper()
	return writeFile(t, file, fmt.Sprintf(`kind: GPUAutoscaler
metadata: {name: %s}
spec:
  scaleTargetRef: {kind: Deployment, name: model}
  minReplicas: %d
  maxReplicas: %d
  signals: [{pods: {metric: "vllm:num_requests_running"}, target: {value: "1"}}]
`, name, least, most))
}

// Two objects with one name are two rows. Each has its own bounds if the load is as
// recorded.
func TestBacktestPolicies(t *testing.T) {
	few, many := policyFile(t, "few.yaml", "chat", 1, 2), policyFile(t, "many.yaml", "chat", 1, 4)
	out, err := backtestOut(t, "--trace", traceFile(t), "--policy", many, "--policy", few, "--policy", few,
		"--peers", "none", "--replicas", "0", "--seeds", "1", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Cells []struct{ Ours string }
		Cases []struct {
			Ours []struct{ ReplicasMax int }
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range report.Cells {
		names = append(names, c.Ours)
	}
	if want := []string{"chat (many.yaml)", "chat (few.yaml)"}; !slices.Equal(names, want) {
		t.Errorf("rows %q, want %q", names, want)
	}
	if ours := report.Cases[0].Ours; len(ours) != 2 || ours[0].ReplicasMax != 4 || ours[1].ReplicasMax != 2 {
		t.Errorf("%+v, want at most 4 and 2 replicas", ours)
	}
}
