// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	nodeagent "github.com/gpupilot/gpupilot/internal/node/agent"
)

// parseReport reads what the agent writes.
func TestReportOfAnAgent(t *testing.T) {
	f := func(want Report, doc nodeagent.Document) {
		t.Helper()
		b, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseReport(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, *got); d != "" {
			t.Errorf("%s:\n%s", b, d)
		}
	}
	none := map[string]int{}
	f(Report{Error: "no driver", Models: none}, nodeagent.Document{Error: "no driver"})
	f(Report{Models: map[string]int{"NVIDIA H200": 2}, Down: 1}, nodeagent.Document{Devices: []nodeagent.DeviceDoc{
		{UUID: "GPU-1", Model: "NVIDIA H200", Up: true}, {UUID: "GPU-2", Model: "NVIDIA H200"},
	}})
	f(Report{Models: map[string]int{"NVIDIA H200": 1}}, nodeagent.Document{Devices: []nodeagent.DeviceDoc{ // two instances of one GPU
		{UUID: "MIG-1", Model: "NVIDIA H200", Up: true, MIG: &nodeagent.MIGDoc{ParentUUID: "GPU-1"}},
		{UUID: "MIG-2", Model: "NVIDIA H200", Up: true, MIG: &nodeagent.MIGDoc{ParentUUID: "GPU-1"}},
	}})
	const byDCGM = "NVML gives profiling fields from Hopper on; through DCGM: GPU library not found"
	f(Report{Models: none, Lacks: []string{"DCGM_FI_PROF_GR_ENGINE_ACTIVE"}, Why: byDCGM}, nodeagent.Document{Lacking: []nodeagent.LackDoc{
		{Fields: []string{"DCGM_FI_DEV_FAN_SPEED"}, Reason: "NVML does not give it for this GPU and driver; through DCGM: GPU library not found"},
		{Fields: []string{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "not a name", ""}, Reason: byDCGM},
	}})
	if _, err := parseReport(strings.NewReader("<html>")); err == nil || strings.Contains(err.Error(), "html") {
		t.Errorf("an answer that is no report: %v", err)
	}
}

// An agent cannot fill the status.
func TestReportIsBounded(t *testing.T) {
	var doc nodeagent.Document
	doc.Error = strings.Repeat("ä", 1000)
	for i := range 100 {
		doc.Devices = append(doc.Devices, nodeagent.DeviceDoc{UUID: strings.Repeat("x", i+1), Model: strings.Repeat("m", i*10), Up: true})
	}
	lack := nodeagent.LackDoc{Reason: "not read through NVML; " + strings.Repeat("x", 1000)}
	for i := range 1000 {
		lack.Fields = append(lack.Fields, strings.Repeat("A", i))
	}
	doc.Lacking = []nodeagent.LackDoc{lack, lack}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport(bytes.NewReader(b))
	if err == nil && (len(got.Lacks) > maxLacks || len(got.Why) > maxModelName) {
		t.Errorf("%d fields, a reason of %d bytes", len(got.Lacks), len(got.Why))
	}
	if err != nil || len(got.Models) > maxModels || len(got.Error) > maxModelName {
		t.Errorf("%d models, an error of %d bytes, %v", len(got.Models), len(got.Error), err)
	}
	for model := range got.Models {
		if len(model) > maxModelName {
			t.Errorf("a model of %d bytes", len(model))
		}
	}
}
