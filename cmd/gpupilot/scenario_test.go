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

// What the controller has recorded becomes a scenario that passes.
func TestScenarioFromCluster(t *testing.T) {
	config := apiServer(t)
	export := func(args ...string) (string, error) {
		var out strings.Builder
		err := run(t.Context(), append([]string{"scenario", "--from-cluster", "llm/chat", "--controller", "gp/controller:8080", "--kubeconfig", config}, args...), &out)
		return out.String(), err
	}
	text, err := export("--around", "2026-01-01T00:05:00Z", "--length", "6m")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"llm/chat, 2026-01-01 00:02:00 to 00:08:00 UTC", "steps of 1s", "name: chat", "serving=2@12", "startup=40s", "-- decisions --"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "currentReplicas") {
		t.Errorf("the status is in\n%s", text)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"scenario", writeFile(t, "incident.txtar", text)}, &out); err != nil {
		t.Errorf("the exported scenario fails: %v\n%s", err, out.String())
	}
	if text, err = export("--around", "2026-01-01T01:00:00Z", "--length", "1h"); err != nil || !strings.Contains(text, "steps of 1m0s") {
		t.Errorf("minutes: %v\n%.300s", err, text)
	}
	f := func(want string, args ...string) {
		t.Helper()
		if _, err := export(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	f("want a time in the past", "--around", "soon")
	f("want 1m to 48h", "--length", "5s")
	f("leave out the files", "a.txtar")
	f("has recorded nothing", "--around", "2025-06-01T00:00:00Z")
	if err := run(t.Context(), []string{"scenario"}, &out); err == nil || !strings.Contains(err.Error(), "at least one file") {
		t.Error(err)
	}
}
