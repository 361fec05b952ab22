// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/policy"
)

// policyFile is a policy on running requests.
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

// Results go by name: no two policies share one.
func TestDistinguish(t *testing.T) {
	f := func(names, files, want []string) {
		t.Helper()
		var all []policy.Named
		for _, name := range names {
			all = append(all, policy.Named{Name: name})
		}
		distinguish(all, files)
		for i := range all {
			if all[i].Name != want[i] {
				t.Errorf("%q in %q is called %q, want %q", names[i], files[i], all[i].Name, want[i])
			}
		}
	}
	f([]string{"a", "b"}, []string{"x.yaml", "x.yaml"}, []string{"a", "b"})
	f([]string{"chat", "chat"}, []string{"one/slo.yaml", "gpu.yaml"}, []string{"chat (slo.yaml)", "chat (gpu.yaml)"})
	f([]string{"chat", "chat", "chat", "b"}, []string{"one/p.yaml", "two/p.yaml", "p.yaml", "p.yaml"},
		[]string{"chat (p.yaml)", "chat (p.yaml, 2)", "chat (p.yaml, 3)", "b"})
}

// Two objects of one name are two rows, each within its own bounds where the
// load is as recorded.
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
