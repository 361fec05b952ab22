// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// No label is on a series twice, whatever static labels, new names, label fields
// and pod labels there are: what would do that is refused.
func TestRelabelPutsNoLabelTwice(t *testing.T) {
	names := slices.Concat(ofParts, onParts, inline, droppable, []string{
		"UUID", "uuid", "GPU_I_ID", "container", "namespace", "pod", "hpc_job", "DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_CPU_MODEL",
		"DCGM_FI_DEV_GPU_TEMP", "cluster", "team", "app",
	})
	check := func(r Relabel) (refused bool) {
		t.Helper()
		if r.Check() != nil {
			return true
		}
		for _, body := range relabelledPages(t, r) {
			for line := range strings.Lines(body) {
				if strings.HasPrefix(line, "DCGM_") && repeatsLabel(line) {
					t.Errorf("%+v: %s", r, line)
				}
			}
		}
		return false
	}
	for _, to := range names {
		refused := check(Relabel{Static: []gpu.PodLabel{{Name: to, Value: "v"}}})
		if own := to == "cluster" || to == "team" || to == "app"; refused == own {
			t.Errorf("static label %q: refused is %v", to, refused)
		}
		for _, from := range names {
			if from != to {
				check(Relabel{Rename: map[string]string{from: to}, Static: []gpu.PodLabel{{Name: "cluster", Value: "v"}}})
			}
		}
	}
	// What is on other series only is no reason to refuse a name.
	for from, to := range map[string]string{"UUID": "gpu_uuid", "modelName": "model_name", "app": "cpu", "hostname": "node"} {
		if err := (&Relabel{Rename: map[string]string{from: to}}).Check(); err != nil {
			t.Errorf("%s=%s: %v", from, to, err)
		}
	}
}

// relabelledPages are pages of all kinds of entities.
func relabelledPages(t *testing.T, r Relabel) []string {
	t.Helper()
	now := soon()
	d := wholeGPU(0, now, map[gpu.FieldID]float64{gpu.GPUUtil: 37, gpu.XIDErrors: 31})
	d.Owners, d.Jobs = []gpu.Owner{{Namespace: "team", Pod: "llm-0", Container: "main"}}, []string{"job"}
	d.Values.SetLabel(gpu.DriverVersion, "590")
	s := snapshot(now, d)
	s.Pods = map[gpu.PodName]gpu.Pod{{Namespace: "team", Name: "llm-0"}: {Labels: []gpu.PodLabel{{Name: "app", Value: "a"}, {Name: "cpu", Value: "b"}, {Name: "team", Value: "c"}}}}
	for _, p := range []gpu.Part{
		{Kind: gpu.NVSwitch, ID: 1},
		{Kind: gpu.NVLink, ID: 1, Parent: 1},
		{Kind: gpu.NVLink, ID: 1, GPU: &s.Devices[0].Device},
		{Kind: gpu.CPU, ID: 0, Serial: "123"},
		{Kind: gpu.CPUCore, ID: 3},
	} {
		part := gpu.PartSnapshot{Part: p, Collected: now}
		part.Values.Set(gpu.SwitchTemp, 45)
		part.Values.Set(gpu.CPUTemp, 45)
		s.Parts = append(s.Parts, part)
	}
	c, bad := ParseCollectors("DCGM_FI_DEV_GPU_UTIL, gauge, a\nDCGM_FI_DEV_XID_ERRORS, gauge, a\nDCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, a\n" +
		"DCGM_FI_DEV_CPU_TEMP_CURRENT, gauge, a\nDCGM_FI_DRIVER_VERSION, label, a\nDCGM_FI_DEV_GPU_TEMP, label, a\nDCGM_EXP_XID_ERRORS_COUNT, gauge, a\n")
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	var out []string
	for _, p := range []names.Profile{names.Profile48, names.Profile482} {
		e := New(Config{Profile: p, Collectors: c, Hostname: "n1", Kubernetes: true, PodUID: true, Relabel: r})
		e.Update(s, Stats{}, now)
		_, body := get(t, e, "/metrics")
		for _, want := range []string{"DCGM_FI_DEV_GPU_UTIL{", "cpucore=", "nvswitch=", `,gpu="0"`} {
			if !strings.Contains(body, want) {
				t.Fatalf("the page lacks %s:\n%s", want, body)
			}
		}
		out = append(out, body)
	}
	return out
}

var labelName = regexp.MustCompile(`[{,]([a-zA-Z_][a-zA-Z0-9_]*)="`)

func repeatsLabel(line string) bool {
	seen := map[string]bool{}
	for _, m := range labelName.FindAllStringSubmatch(line, -1) {
		if seen[m[1]] {
			return true
		}
		seen[m[1]] = true
	}
	return false
}
