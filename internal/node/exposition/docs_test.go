// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
	"github.com/gpupilot/gpupilot/internal/loadgen/load"
)

var update = flag.Bool("update", false, "write docs/metrics.md and the golden pages")

// docs/metrics.md is what the tables say.
func TestMetricsDocument(t *testing.T) {
	const file = "../../../docs/metrics.md"
	want := metricsDocument()
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the tables say: go test ./internal/node/exposition -run MetricsDocument -update", file)
	}
}

// rangeOf writes a field's range; where only the width of numbers ends it, its
// beginning.
func rangeOf(i gpu.Index) string {
	f, r := gpu.At(i), gpu.RangeAt(i)
	switch {
	case f.Kind == gpu.Label:
		return ""
	case r.Max >= 1<<53:
		return fmt.Sprintf("from %.0f", r.Min)
	}
	return fmt.Sprintf("%.0f to %.0f", r.Min, r.Max)
}

func metricsDocument() []byte {
	var b bytes.Buffer
	b.WriteString(`# Metrics of gpupilot-agent

This page is written by ` + "`go test ./internal/node/exposition -run MetricsDocument -update`" + ` from the tables in the code.

## Fields

Names, labels and units are dcgm-exporter's. ` + "`--profile`" + ` says of which release; a collectors file (` + "`-f`" + `) may name a field in any of them, or by several
at once, and each is shown under the name and in the unit that the file has. ● marks what is shown without a file. How a field is combined over the
GPUs of a pod, and then over the pods of a workload, is what the controller does with it. Other fields of DCGM pass through
([agent.md](agent.md#other-fields-of-dcgm)). Some fields only DCGM gives; ` + "`gpupilot_field_supported`" + `
says which of those that a collectors file asks for a GPU lacks.

The controller takes a value outside of its field's range for no value and counts it (` + "`gpupilot_scrape_out_of_range_total`" + `). A ratio above 1 and up to
1.5 counts as 1: DCGM measures up to 1.3 on MIG instances. DCGM's blanks, which stand for a missing value, are no values either. Ranges are in the unit of 4.8.

| id | 4.8 (and 4.8.2) | unit | range | kind | 4.9, where it differs | unit | 1.x | GPUs of a pod | pods |
|---|---|---|---|---|---|---|---|---|---|
`)
	on := map[gpu.FieldID]bool{}
	for _, id := range defaultFields {
		on[id] = true
	}
	for i, f := range gpu.Fields() {
		name49, scale49 := other(names.Profile49, &f)
		name1, _ := other(names.Profile1x, &f)
		mark := ""
		if on[f.ID] {
			mark = " ●"
		}
		unit49 := ""
		if scale49 != 1 {
			unit49 = names.UnitOf(f.Unit, scale49)
		}
		fmt.Fprintf(&b, "| %d | `%s`%s | %s | %s | %s | %s | %s | %s | %s | %s |\n", f.ID, f.Name, mark, f.Unit, rangeOf(gpu.Index(i)),
			[...]string{"gauge", "counter", "label"}[f.Kind], code(name49), unit49, code(name1), f.PodAgg, f.LoadAgg)
	}
	b.WriteString(`
## Parts

What is no GPU: NvSwitches, NVLinks, and NVIDIA's CPUs with their cores, through DCGM ([agent.md](agent.md#backends)). They are shown where the collectors
file names one of these fields, which differ from those of GPUs in their labels.

| id | 4.8 (and 4.8.2) | unit | kind | 4.9, where it differs | of |
|---|---|---|---|---|---|
`)
	for _, f := range gpu.PartFields() {
		name49, _ := other(names.Profile49, &f)
		var on []string
		for k := range gpu.PartKind(gpu.PartKinds) {
			if f.On(k) {
				on = append(on, k.String())
			}
		}
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s | %s | %s |\n", f.ID, f.Name, f.Unit, [...]string{"gauge", "counter", "label"}[f.Kind], code(name49), strings.Join(on, ", "))
	}
	b.WriteString(`
| of | labels |
|---|---|
| nvswitch | ` + "`nvswitch`" + ` (` + "`nvswitch0`" + `), ` + "`hostname`" + ` |
| nvlink of a switch | ` + "`nvlink`" + ` (from 0), ` + "`nvswitch`, `hostname`" + ` |
| nvlink of a GPU | ` + "`nvlink`" + ` (from 1), ` + "`gpu`, `gpu_uuid`, `pci_bus_id`, `device`, `model_name`, `hostname`" + ` |
| cpu | ` + "`cpu`, `cpu_serial`" + ` (profiles 4.8 and 4.9, where it is known), ` + "`hostname`" + ` |
| cpucore | ` + "`cpucore`, `cpu`, `hostname`" + ` |

## Notes on fields

` + "`DCGM_FI_DEV_XID_ERRORS`" + ` (and its other names) also has the labels ` + "`err_code` and `err_msg`" + `.

## Made from several collections

dcgm-exporter's exporter counters, the same names in every profile. They need a line in the collectors file.

| metric | value | labels |
|---|---|---|
| ` + "`DCGM_EXP_XID_ERRORS_COUNT`" + ` | XID errors of the last ` + "`--xid-count-window-size`" + `; 0 without ` + "`xid`" + ` if there was none | ` + "`xid`, `window_size_in_ms`" + ` |
| ` + "`DCGM_EXP_XID_ERRORS_TOTAL`" + ` | XID errors since the agent started; the codes that concern health, and 13, 31, 43 and 45, begin at 0 | ` + "`xid`" + ` |
| ` + "`DCGM_EXP_CLOCK_EVENTS_COUNT`" + ` | collections of the last ` + "`--clock-events-count-window-size`" + ` (at most 3600) in which the reason held the clocks down; 0 without ` + "`clock_event`" + ` if there was none | ` + "`clock_event`, `window_size_in_ms`" + ` |
| ` + "`DCGM_EXP_CLOCK_EVENTS_TOTAL`" + ` | how often the reason began to hold them down, seen from one collection to the next; 0 before the first time | ` + "`clock_event`" + ` |
| ` + "`DCGM_EXP_GPU_HEALTH_STATUS`" + ` | 0 pass, 10 warning, 20 failure, for each system of a whole GPU | ` + "`health_watch`, `health_error_code`" + ` |
| ` + "`DCGM_EXP_P2P_STATUS`" + ` | how the GPU reaches each other one over NVLink: 0 it does, 1 to 5 why it does not, 6 unknown; read every ten seconds | ` + "`link_status`, `peer_gpu`" + ` |

With ` + "`--backend dcgm`" + ` (and ` + "`-r`" + `) the health is DCGM's own verdict on each system, the worst where a system has several.
Without DCGM's health module, and with NVML, the agent judges each system itself:

| ` + "`health_watch`" + ` | judged by |
|---|---|
| MEM | XID errors of the last hour, failed and pending row remappings, pending page retirements, volatile double-bit ECC errors |
| THERMAL | thermal throttling, the slowdown temperature |
| POWER | the power brake |
| NVLINK | XID errors of the last hour; through NVML, links that were active since the agent started and are not now |
| DRIVER | XID errors of the last hour, failed reads |
| PCIE, PMU, MCU | XID errors of the last hour |
| ALL, the GPU as a whole | XID 48, 74, 79, 94, 95, 119, 120 and 140 of the last hour, as DCGM does; a GPU that is lost, or cannot be read any more |
| SM, INFOROM | absent: only DCGM can judge them |

## Our own

These are in base units (seconds, times as seconds since 1970). Those marked ◆ are there whatever a ` + "`?name[]=`" + ` asks for,
those marked ◇ only with ` + "`--enable-exporter-metrics`" + `.

| metric | type | meaning |
|---|---|---|
`)
	own := metaFamilies(&Config{Kubernetes: true, Pods: true, Processes: true, Further: true})
	for _, f := range own[:len(own)-len(selfFamilies())] {
		mark := ""
		switch {
		case f.always:
			mark = " ◆"
		case f.further:
			mark = " ◇"
		}
		fmt.Fprintf(&b, "| `%s`%s | %s | %s |\n", f.name, mark, f.typ, f.help)
	}
	b.WriteString(`
Their labels: ` + "`uuid`" + ` is the device's UUID, of a MIG device its own. ` + "`gpupilot_gpu_allocation_info`" + ` has ` + "`uuid`, `namespace`, `pod`, `container`" + ` and ` + "`replica`" + `
(the share of a time-sliced device, else empty). ` + "`gpupilot_gpu_info` has `uuid`, `gpu`, `device`, `pci_bus_id`, `model`, of a MIG device `mig_profile`, and `hostname` in every profile: join with it to name a device. For the fields above it has " + "`UUID`, `GPU_I_ID` and, in the profiles with it, `Hostname`" + " as they have: `FIELD * on (UUID, GPU_I_ID) group_left (model) max by (UUID, GPU_I_ID, model) (gpupilot_gpu_info)`. With `--use-old-namespace` join whole GPUs on `uuid`.\n" + "`gpupilot_pod_gpu_*` have `uuid`, `gpu`, `namespace`, `pod` and `container`; these and others of processes are there with `--process-metrics` ([agent.md](agent.md#processes))." + ` Energy, throttling and links are the whole GPU's, with its UUID; ` + "`reason`" + ` is power or thermal and, with the same flag, sync_boost, board_limit, low_utilization or reliability; ` + "`type`" + `
crc_flit, crc_data, replay, recovery, ecc_data or, from NVLink 5 on, what its counters are called. The links come from NVML alone. ` + "`collector`" + ` is devices (enumerations), gpus (their reads),
parts or allocations (the kubelet's word). A MIG device's other series have the UUID of its GPU, as dcgm-exporter's do; ` + "`gpupilot_mig_device_info`" + ` has
` + "`uuid`, `parent_uuid`, `gpu_instance`, `compute_instance`" + ` (empty where it is the whole instance) and ` + "`profile`" + `.
`)
	b.WriteString(worth("../../../docs/calibration"))
	return b.Bytes()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// other is a profile's name of a field where it is not the name of 4.8, and its scale.
func other(p names.Profile, f *gpu.Field) (name string, scale float64) {
	if name, scale = p.Name(f); name == f.Name {
		name = ""
	}
	return name, scale
}

// worth is the section about what a pipe's activity is worth on the models that were calibrated.
func worth(dir string) string {
	var b strings.Builder
	b.WriteString("\n## What an activity is worth\n\n")
	files, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	if len(files) == 0 {
		return b.String() + "No model has been calibrated yet. `make hardware` measures, on a machine with a GPU, which TFLOP/s, GB/s and W belong to a value of\n" +
			"a `DCGM_FI_PROF_*` metric, and this page then shows it. On your own GPU: [`gpupilot load gpu --calibrate`](load.md#calibrate).\n"
	}
	b.WriteString("Measured with [`gpupilot load gpu --calibrate`](load.md#calibrate).\n\n| model | metric | value | rate | of the peak | power |\n|---|---|---|---|---|---|\n")
	for _, file := range files {
		tables, err := calibration.Read(file)
		if err != nil {
			return b.String() + err.Error() + "\n"
		}
		for _, t := range tables {
			for _, p := range t.Points {
				k, _ := load.KindOf(p.Load)
				f, _ := gpu.Lookup(k.Field)
				fmt.Fprintf(&b, "| %s | `%s` | %s | %s | %s | %s |\n", t.Model, f.Name, optional("%.3g", p.Generated, 1), optional("%.4g "+p.RateUnit, p.Rate, 1),
					optional("%.0f %%", p.Share, 100), optional("%.0f W", p.Watts, 1))
			}
		}
	}
	return b.String()
}

func optional(format string, v *float64, factor float64) string {
	if v == nil {
		return "–"
	}
	return fmt.Sprintf(format, *v*factor)
}

// A calibrated model is on the page.
func TestWorth(t *testing.T) {
	dir, v := t.TempDir(), func(x float64) *float64 { return &x }
	err := calibration.Write(filepath.Join(dir, "h200.json"), []calibration.Table{{Model: "NVIDIA H200", Points: []calibration.Point{
		{Load: "fp32", Duty: 0.6, Generated: v(0.58), Rate: v(38.9), RateUnit: "TFLOP/s", Share: v(0.58), Watts: v(412)}, {Load: "sm-active", Duty: 1, Generated: v(1)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	page := worth(dir)
	for _, row := range []string{"| NVIDIA H200 | `DCGM_FI_PROF_PIPE_FP32_ACTIVE` | 0.58 | 38.9 TFLOP/s | 58 % | 412 W |\n", "| NVIDIA H200 | `DCGM_FI_PROF_SM_ACTIVE` | 1 | – | – | – |\n"} {
		if !strings.Contains(page, row) {
			t.Errorf("%s\nlacks %s", page, row)
		}
	}
}
