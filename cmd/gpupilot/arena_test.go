// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/replay/arena"
)

// The published match alone takes a second: seven loads, and the eighth from a file.
func TestArena(t *testing.T) {
	recorded := filepath.Join(t.TempDir(), "mooncake.jsonl")
	if err := os.WriteFile(recorded, []byte(`{"timestamp": 0, "input_length": 700, "output_length": 9, "hash_ids": [1, 2]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	policy := "../../examples/vllm-slo.yaml"
	var out bytes.Buffer
	if err := run(t.Context(), []string{"arena", "--stretch", "0", "--seeds", "1", "--mooncake", recorded, "--policy", policy, "-o", "json"}, &out); err != nil {
		t.Fatal(err)
	}
	var report arena.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Tables) != 1 || len(report.Tables[0].Loads) != 8 {
		t.Fatalf("%d tables: %+v", len(report.Tables), report.Tables)
	}
	ours := 0
	for _, r := range report.Tables[0].Rows {
		if r.Ours {
			ours++
		}
		if r.GoodRate <= 0 || r.GoodRate > 1 || r.GPUs < 1 || r.GPUs > 8 || len(r.PerLoad) != 8 {
			t.Errorf("%+v", r)
		}
	}
	if ours != 1 {
		t.Errorf("%d policies of ours, want 1", ours)
	}
}

// Invalid flags are refused before any replay, with the name of the flag.
func TestArenaRefusesFlags(t *testing.T) {
	for _, args := range [][]string{
		{"-o", "html"},
		{"--seeds", "0"},
		{"--stretch", "0.5"},
		{"--stretch", "NaN"},
		{"--startup", "0s"},
		{"--scrape", "2m"},
		{"--mooncake", "/missing.jsonl"},
		{"--policy", "/missing.yaml"},
	} {
		err := run(t.Context(), append([]string{"arena"}, args...), &bytes.Buffer{})
		if err == nil || !strings.Contains(err.Error(), args[0]) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
