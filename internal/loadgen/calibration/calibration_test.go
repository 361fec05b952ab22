// SPDX-License-Identifier: Apache-2.0

package calibration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

// A calibration has a point for each load and duty, and none for what was not read or for the step in which the duty changes.
func TestCalibration(t *testing.T) {
	var c Calibrator
	value := func(v float64) *float64 { return &v }
	gpu := load.GPU{Name: "NVIDIA H200", ComputeCapability: "9.0", SMs: 132}
	for _, s := range []load.Step{
		{Load: "fp32", Duty: 0.5, Generated: value(0.48), Error: 0.01, Rate: value(32), RateUnit: "TFLOP/s", Watts: value(300)},
		{Load: "fp32", Duty: 0.501, Generated: value(0.50), Error: 0.02, Rate: value(34), RateUnit: "TFLOP/s"},
		{Load: "fp32", Duty: 0.73, Generated: value(0.7)},
		{Load: "fp32", Duty: 1, Generated: value(0.96)},
		{Load: "fp32", Duty: 1, Generated: value(0.98)},
		{Load: "dram", Duty: 1},
		{Load: "dram", Duty: 1},
	} {
		s.GPU = gpu
		c.Add(s)
	}
	file := filepath.Join(t.TempDir(), "table.json")
	if err := c.Write(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tables []Table
	if err := json.Unmarshal(b, &tables); err != nil || len(tables) != 1 || len(tables[0].Points) != 3 || tables[0].Model != "NVIDIA H200" {
		t.Fatalf("%s, %v", b, err)
	}
	dram, half, full := tables[0].Points[0], tables[0].Points[1], tables[0].Points[2]
	if dram.Generated != nil || dram.Watts != nil || *half.Generated != 0.49 || *half.Rate != 33 || *half.Watts != 300 || half.Error != 0.02 || *full.Generated != 0.97 {
		t.Errorf("%s", b)
	}
}
