// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/agent"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
)

// The list that a GPUExporter without collectors gets is the agent's own.
func TestDefaultCollectorsAreTheAgents(t *testing.T) {
	for _, profile := range []names.Profile{names.Profile48, names.Profile49, names.Profile1x} {
		text := defaultCollectors(string(profile))
		got, bad := exposition.ParseCollectors(text)
		if len(bad) > 0 {
			t.Errorf("profile %s: %v", profile, bad)
		}
		want := exposition.DefaultCollectors(profile)
		shown := func(c exposition.Collectors) (out []string) {
			for _, m := range c.Metrics {
				out = append(out, m.Name+" "+string(m.Type)+" "+m.Help)
			}
			for _, l := range c.Labels {
				out = append(out, l.Name)
			}
			slices.Sort(out)
			return out
		}
		if d := cmp.Diff(shown(want), shown(got)); d != "" {
			t.Errorf("profile %s:\n%s", profile, d)
		}
	}
}

// parseReport reads what the agent writes.
func TestReportOfAnAgent(t *testing.T) {
	f := func(want gpuexporter.Report, doc agent.Document) {
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
	f(gpuexporter.Report{Error: "no driver", Models: none}, agent.Document{Error: "no driver"})
	f(gpuexporter.Report{Models: map[string]int{"NVIDIA H200": 2}, Down: 1}, agent.Document{Devices: []agent.DeviceDoc{
		{UUID: "GPU-1", Model: "NVIDIA H200", Up: true}, {UUID: "GPU-2", Model: "NVIDIA H200"},
	}})
	f(gpuexporter.Report{Models: map[string]int{"NVIDIA H200": 1}}, agent.Document{Devices: []agent.DeviceDoc{ // two instances of one GPU
		{UUID: "MIG-1", Model: "NVIDIA H200", Up: true, MIG: &agent.MIGDoc{ParentUUID: "GPU-1"}},
		{UUID: "MIG-2", Model: "NVIDIA H200", Up: true, MIG: &agent.MIGDoc{ParentUUID: "GPU-1"}},
	}})
	if _, err := parseReport(strings.NewReader("<html>")); err == nil || strings.Contains(err.Error(), "html") {
		t.Errorf("an answer that is no report: %v", err)
	}
}

// An agent cannot fill the status.
func TestReportIsBounded(t *testing.T) {
	var doc agent.Document
	doc.Error = strings.Repeat("ä", 1000)
	for i := range 100 {
		doc.Devices = append(doc.Devices, agent.DeviceDoc{UUID: strings.Repeat("x", i+1), Model: strings.Repeat("m", i*10), Up: true})
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parseReport(bytes.NewReader(b))
	if err != nil || len(got.Models) > maxModels || len(got.Error) > maxModelName {
		t.Errorf("%d models, an error of %d bytes, %v", len(got.Models), len(got.Error), err)
	}
	for model := range got.Models {
		if len(model) > maxModelName {
			t.Errorf("a model of %d bytes", len(model))
		}
	}
}
