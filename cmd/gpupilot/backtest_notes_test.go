// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Limits and bounds are printed, unless -q is given.
func TestBacktestNotes(t *testing.T) {
	args := []string{"--trace", traceFile(t), "--policy", policyFile(t, "p.yaml", "chat", 2, 7), "--peers", "none", "--seeds", "1", "--replicas"}
	f := func(replicas string, bounds bool, more ...string) {
		t.Helper()
		var stderr bytes.Buffer
		if _, err := backtestNotes(t.Context(), &stderr, append(append(args, replicas), more...)...); err != nil {
			t.Fatal(err)
		}
		if quiet := slices.Contains(more, "-q"); strings.Contains(stderr.String(), "limits on llama-8b: 2.5s") == quiet {
			t.Errorf("--replicas %s %v: limits in %q", replicas, more, &stderr)
		}
		if strings.Contains(stderr.String(), "minReplicas and maxReplicas (chat's 2 to 7) are not applied: --replicas 3") != bounds {
			t.Errorf("--replicas %s %v: bounds in %q", replicas, more, &stderr)
		}
	}
	f("3", true)
	f("0", false)
	f("3", false, "-q")
}

// The note on infeasible requests is printed with -q, too.
func TestBacktestInfeasibleNote(t *testing.T) {
	var stderr bytes.Buffer
	_, err := backtestNotes(t.Context(), &stderr, "-q", "--trace", traceFile(t), "--peers", "none", "--seeds", "1", "--replicas", "2", "--ttft", "40ms")
	if err != nil || !strings.HasPrefix(stderr.String(), "t: ") || !strings.HasSuffix(stderr.String(), " requests cannot meet 40ms to the first token on an idle llama-8b and are not counted\n") {
		t.Errorf("%v, %q", err, &stderr)
	}
}
