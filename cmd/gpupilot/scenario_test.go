// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

const twoSaturated = `Two saturated replicas
-- policy.yaml --
kind: GPUAutoscaler
spec:
  maxReplicas: 9
  signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]
-- timeline --
0s replicas=2 serving=2@97
2s starting=2
5s
-- promises --
always replicas>=2
`

func TestScenario(t *testing.T) {
	path := writeFile(t, "two.txtar", twoSaturated)
	play := func(args ...string) (string, error) {
		var out strings.Builder
		err := run(t.Context(), append([]string{"scenario", path}, args...), &out)
		return out.String(), err
	}
	out, err := play()
	if err != nil || !strings.Contains(out, "Two saturated replicas") || !strings.Contains(out, "2 serving × 97 %") {
		t.Fatalf("%v\n%s", err, out)
	}
	if strings.Contains(out, "\n5s ") {
		t.Errorf("nothing changed at 5s:\n%s", out)
	}
	if _, err := play("--update", "--all"); err != nil {
		t.Fatal(err)
	}
	if out, err := play("--all"); err != nil || !strings.Contains(out, "\n5s ") || strings.Contains(out, "\n4s ") {
		t.Errorf("what is decided at each line: %v\n%s", err, out)
	}
	if _, err := play(); err != nil {
		t.Errorf("what was written fails: %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), "2 serving", "3 serving", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := play(); err == nil || !strings.Contains(out, "-0s") || !strings.Contains(out, "+0s") {
		t.Errorf("another decision than recorded: %v\n%s", err, out)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(twoSaturated, ">=2", ">=9", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := play(); err == nil || !strings.Contains(out, "broken: promises line 1") {
		t.Errorf("a broken promise: %v\n%s", err, out)
	}
}
