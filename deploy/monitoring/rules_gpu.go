// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// byGPU are the labels of an alert on a GPU.
const byGPU = "cluster, node, gpu"

// onGPU is how an alert's text names its GPU.
const onGPU = "GPU {{ $labels.gpu }} of node {{ $labels.node }}"

// deviceAlert is the same value of our agent and of a field, whichever there is.
func deviceAlert(ours, field string) string {
	var parts []string
	for _, q := range []string{ours, field} {
		if q != "" {
			parts = append(parts, q)
		}
	}
	return by("max", byGPU, withNode(strings.Join(parts, "\nor\n")))
}

func lostAlerts() []alert {
	unread := by("max", byGPU+", uuid", withNode(own("(gpupilot_device_up == 0)", "")))
	seen := func(window string) string {
		wrap := func(s string) string { return s }
		if window != "" {
			wrap = func(s string) string { return "last_over_time(" + s + "[" + window + "])" }
		}
		return by("count", "cluster, node", by("group", byGPU, withNode(anyGPU.query("", wrap))))
	}
	counted := func(matchers string) string {
		return by("max", "cluster, node", withNode("gpupilot_gpus_by_source"+braces(matchers)))
	}
	forgotten := "(\n" + indent(seen("30m")+"\n-\n"+seen("")) + "\n) > 0"
	// What was never there since the agent started: the bus, or the device plugin, has more than the library.
	never := "(\n" + indent(by("max", "cluster, node", withNode(`gpupilot_gpus_by_source{bound="nvidia"}`+"\nor\n"+`gpupilot_gpus_by_source{source="device_plugin"}`))+
		"\n-\n"+counted(`source="library"`)) + "\n) > 0"
	return []alert{
		{
			name: "GPULost", expr: unread, hold: "1m", severity: critical, runbook: "gpu.md#a-gpu-is-lost",
			summary:     onGPU + " cannot be read",
			description: onGPU + " ({{ $labels.uuid }}) has given no values for more than 1 minute. It fell off the bus, or its driver hangs. Pods on it fail.",
		},
		{
			name: "GPUMissing", hold: "5m", severity: critical, runbook: "gpu.md#a-gpu-is-lost",
			expr:        "(\n" + indent(never+"\nor\n"+forgotten) + "\n)\nunless on (cluster, node)\n" + unread,
			summary:     "Node {{ $labels.node }} shows {{ $value }} GPUs fewer than it should",
			description: "Node {{ $labels.node }} has {{ $value }} GPUs fewer than on its PCI bus, than its device plugin offers, or than in the last 30 minutes, and its exporter answers. A GPU was lost, did not start with the driver, or was taken away on purpose.",
		},
	}
}

// xidCodes are the codes of the table by severity: a reset, a restart or a repair is
// needed; the health of a system is impaired.
func xidCodes() (fatal, impaired []string) {
	for code := range uint64(1000) {
		x, ok := gpu.LookupXID(code)
		switch {
		case !ok:
		case x.Fatal != "":
			fatal = append(fatal, strconv.FormatUint(code, 10))
		case x.GPU.Health > 0 || x.System.Health > 0:
			impaired = append(impaired, strconv.FormatUint(code, 10))
		}
	}
	return fatal, impaired
}

// xidWithin finds GPUs whose XID error with a code that matches came within the window.
// Our agent says when it was. A field has only the last code, which a later one
// replaces: a code is new if it was there within the window, and not before.
func xidWithin(window string, windowSeconds int, operator string, codes []string) string {
	matches := func(label string) string {
		return fmt.Sprintf(`%s%s"%s"`, label, operator, strings.Join(codes, "|"))
	}
	field := func(before, after string) string {
		return by("group", byGPU+", xid", relabel(withNode(fieldOf(gpu.XIDErrors).query(matches("err_code"), func(s string) string { return before + s + after })+" > 0"), "xid", "err_code"))
	}
	ours := by("group", byGPU+", xid", withNode(own(fmt.Sprintf("(time() - gpupilot_xid_last_seen_timestamp_seconds{%s} < %d)", matches("xid"), windowSeconds), "")))
	return ours + "\nor\n(\n" + indent(field("last_over_time(", "["+window+"])")+"\nunless\n"+field("", " offset "+window)) + "\n)"
}

func errorAlerts() []alert {
	fatal, impaired := xidCodes()
	other := slices.Concat([]string{"0"}, fatal, impaired)
	text := "XID {{ $labels.xid }} on " + onGPU
	hour := increase("1h")
	return []alert{
		{
			name: "GPUXIDCritical", expr: xidWithin("1h", 3600, "=~", fatal), severity: critical, runbook: "gpu.md#an-xid-error", summary: text,
			description: onGPU + " reported XID {{ $labels.xid }} in the last hour. The GPU needs a reset, the node a restart, or the GPU a replacement.",
		},
		{
			name: "GPUXIDWarning", expr: xidWithin("1h", 3600, "=~", impaired), severity: warning, runbook: "gpu.md#an-xid-error", summary: text,
			description: onGPU + " reported XID {{ $labels.xid }} in the last hour. The GPU still works, but part of it is impaired.",
		},
		{
			name: "GPUXIDInfo", expr: xidWithin("15m", 900, "!~", other), severity: info, runbook: "gpu.md#an-xid-error", summary: text,
			description: onGPU + " reported XID {{ $labels.xid }} in the last 15 minutes. Most often an application did something wrong.",
		},
		{
			name: "GPUUncorrectableECC", severity: critical, runbook: "gpu.md#memory-errors",
			expr:        deviceAlert("", fieldOf(gpu.ECCDBEVolatile).query("", hour)+" > 0"),
			summary:     "Uncorrectable memory errors on " + onGPU,
			description: onGPU + ` had {{ $value | printf "%.0f" }} uncorrectable ECC errors in the last hour. Results computed on it may be wrong.`,
		},
		{
			name: "GPURowRemapFailed", severity: critical, runbook: "gpu.md#memory-errors",
			expr:        deviceAlert("", fieldOf(gpu.RowRemapFailure).query("", nil)+" > 0"),
			summary:     "A memory row of " + onGPU + " could not be remapped",
			description: onGPU + " has no spare row left for a memory row with errors (value {{ $value }}). Replace the GPU.",
		},
		{
			name: "GPURowRemapPending", hold: "5m", severity: warning, runbook: "gpu.md#memory-errors",
			expr:        deviceAlert(fieldOf(gpu.RowRemapPending).query("", nil)+" > 0", fieldOf(gpu.RetiredPending).query("", nil)+" > 0"),
			summary:     onGPU + " needs a reset to repair its memory",
			description: onGPU + " has {{ $value }} memory repairs pending (row remapping or page retirement). A reset completes them.",
		},
		{
			name: "GPURowsRemapped", severity: warning, runbook: "gpu.md#memory-errors",
			expr:        deviceAlert("", fieldOf(gpu.UncorrRemappedRows).query("", increase("1d"))+" > 0"),
			summary:     "Memory rows of " + onGPU + " were remapped after uncorrectable errors",
			description: onGPU + ` had {{ $value | printf "%.0f" }} memory rows remapped because of uncorrectable errors in the last day.`,
		},
		{
			name: "GPUNVLinkDown", hold: "5m", severity: warning, runbook: "gpu.md#an-nvlink-is-down",
			expr:        deviceAlert(own("(gpupilot_nvlinks_down > 0)", ""), ""),
			summary:     "{{ $value }} NVLinks of " + onGPU + " are down",
			description: "{{ $value }} NVLinks of " + onGPU + " were up since the agent started and are not now. Jobs over several GPUs are slow or fail.",
		},
	}
}

// held is the share of time for which GPUs were held back for a reason.
func held(reason string, id gpu.FieldID) string {
	return deviceAlert(own(`rate(gpupilot_gpu_throttle_seconds_total{reason="`+reason+`"}[10m])`, ""), fieldOf(id).query("", rate("10m")))
}

const (
	idleShare      = 0.01 // of the time, below which a GPU is idle
	throttledShare = 0.1  // of the time, above which heat holds a GPU back
)

func useAlerts() []alert {
	quarter := func(s string) string { return "max_over_time(" + s + "[15m])" }
	used := fieldOf(gpu.GPUUtil).allocated("", quarter) + "\nor\n" + fieldOf(gpu.GREngineActive).allocated("", quarter)
	pods := relabel(relabel(relabel(withNode(used), "pod", "exported_pod"), "namespace", "exported_namespace"), "pod", "pod_name")
	return []alert{
		{
			name: "GPUThermalThrottling", hold: "5m", severity: warning, runbook: "gpu.md#a-gpu-is-throttled",
			expr:        held("thermal", gpu.ThermalViolation) + " > " + number(throttledShare),
			summary:     onGPU + " is too hot",
			description: onGPU + " was slowed down by its temperature for {{ $value | humanizePercentage }} of the last 10 minutes.",
		},
		{
			name: "GPUPowerThrottling", hold: "30m", severity: info, runbook: "gpu.md#a-gpu-is-throttled",
			expr:        held("power", gpu.PowerViolation) + " > 0.5",
			summary:     onGPU + " is at its power limit",
			description: onGPU + " was slowed down by its power limit for {{ $value | humanizePercentage }} of the last 10 minutes. At full load this is normal with a lowered limit.",
		},
		{
			name: "GPUAllocatedIdle", hold: "1h", severity: info, runbook: "gpu.md#idle-gpus",
			expr:        by("max", byGPU+", GPU_I_ID, namespace, pod", pods) + " < " + number(idleShare),
			summary:     "Pod {{ $labels.namespace }}/{{ $labels.pod }} holds an idle GPU",
			description: onGPU + " has been idle for more than an hour, and pod {{ $labels.namespace }}/{{ $labels.pod }} holds it. Its highest utilisation of the last 15 minutes is {{ $value | humanizePercentage }}.",
		},
	}
}
