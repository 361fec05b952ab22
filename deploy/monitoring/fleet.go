// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Grafana's units.
const (
	share   = "percentunit"
	watts   = "watt"
	celsius = "celsius"
	hertz   = "hertz"
	bytes_  = "bytes"
	bytesPS = "Bps"
	seconds = "s"
	count   = "short"
	joules  = "joule"
	perSec  = "cps" // of events
	reqPS   = "reqps"
	tokenPS = "suffix: tokens/s"
	time_   = "dateTimeAsIso"
)

// nodeName is the legend of a node, whichever label has it.
const nodeName = "{{hostname}}{{Hostname}}"

// anyGPU tells that a GPU is there: every exporter shows its temperature by default.
var anyGPU = fieldOf(gpu.GPUTemp)

const scoped = `cluster=~"$cluster",job=~"$job"`

// fleet is the whole fleet: how many GPUs of what, who holds them, what they do.
func fleet() board {
	matchers := scoped
	every := by("max", perGPU+", modelName", anyGPU.query(matchers, nil))
	held := by("max", perGPU+", modelName", anyGPU.allocated(matchers, nil))
	util := by("max", perGPU+", modelName", fieldOf(gpu.GPUUtil).query(matchers, nil))
	power := by("max", perGPU+", modelName", fieldOf(gpu.PowerUsage).query(matchers, nil))
	used := by("max", perPart+", modelName", fieldOf(gpu.FBUsed).query(matchers, nil))
	free := by("max", perPart+", modelName", fieldOf(gpu.FBFree).query(matchers, nil))
	return board{
		name: "fleet", title: "GPUPilot / Fleet",
		description: "GPUs by model and node pool, who holds them, what they do, and their problems. For gpupilot-agent and dcgm-exporter.",
		variables:   []variable{datasource(), clusters(), jobs()},
		marks:       changes(`{cluster=~"$cluster"}`),
		rows: []row{
			{title: "Now", panels: []panel{
				{kind: single, title: "GPUs", queries: []query{{expr: "count(" + every + ")"}}},
				{kind: single, title: "Allocated", about: "GPUs that a pod holds.", queries: []query{{expr: "count(" + held + ") or vector(0)"}}},
				{kind: single, title: "Utilisation", about: "Mean share of time in which a kernel runs, over all GPUs.", unit: share, queries: []query{{expr: "avg(" + util + ")"}}},
				{kind: single, title: "Memory used", unit: share, levels: fullMemory, queries: []query{{expr: "sum(" + used + ")\n/\n(sum(" + used + ") + sum(" + free + "))"}}},
				{kind: single, title: "Power", unit: watts, queries: []query{{expr: "sum(" + power + ")"}}},
				{
					kind: single, title: "Alerts", about: "Firing alerts on GPUs and their exporters, of the rules that come with GPUPilot.", levels: none, link: toRunbooks,
					queries: []query{{expr: `count(ALERTS{cluster=~"$cluster",alertstate="firing",alertname=~"` + strings.Join(gpuAlerts(), "|") + `"}) or vector(0)`}},
				},
			}},
			fleetByModel(every, held, util, power),
			fleetOverTime(every, held, util, power, used),
			fleetProblems(),
		},
	}
}

func fleetByModel(every, held, util, power string) row {
	pool := func(q string) string {
		return by("max", "cluster, node, gpu", withNode(q)) +
			"\n* on (cluster, node) group_left (pool)\n" + by("max", "cluster, node, pool", "gpupilot_node_gpus > bool 0")
	}
	return row{title: "By model and node pool", panels: []panel{
		{
			kind: rows, title: "By model", queries: []query{
				{expr: by("count", "modelName", every)},
				{expr: by("count", "modelName", held)},
				{expr: by("avg", "modelName", util)},
				{expr: by("sum", "modelName", power)},
			},
			columns: []column{{from: "modelName", to: "Model"}, {from: "Value #A", to: "GPUs"}, {from: "Value #B", to: "Allocated"}, {from: "Value #C", to: "Utilisation", unit: share}, {from: "Value #D", to: "Power", unit: watts}},
		},
		{
			kind: rows, title: "By node pool", about: "Pools as gpupilot-controller reads them from the nodes' labels; without it this panel is empty.",
			queries: []query{
				{expr: by("sum", "pool", by("max", "cluster, node, pool", `gpupilot_node_gpus`))},
				{expr: by("count", "pool", pool(held))},
				{expr: by("avg", "pool", pool(util))},
				{expr: by("sum", "pool", pool(power))},
			},
			columns: []column{{from: "pool", to: "Node pool"}, {from: "Value #A", to: "GPUs"}, {from: "Value #B", to: "Allocated"}, {from: "Value #C", to: "Utilisation", unit: share}, {from: "Value #D", to: "Power", unit: watts}},
		},
	}}
}

func fleetOverTime(every, held, util, power, used string) row {
	return row{title: "Over time", panels: []panel{
		{kind: areas, title: "GPUs by model", unit: count, queries: []query{{by("count", "modelName", every), "{{modelName}}"}}},
		{kind: areas, title: "Allocated and idle", about: "Idle: no pod holds the GPU.", unit: count, queries: []query{
			{"count(" + held + ") or vector(0)", "allocated"}, {"count(" + every + ")\n-\n(count(" + held + ") or vector(0))", "idle"},
		}},
		{title: "Utilisation by model", unit: share, full: true, queries: []query{{by("avg", "modelName", util), "{{modelName}}"}}},
		{kind: areas, title: "Power by model", unit: watts, queries: []query{{by("sum", "modelName", power), "{{modelName}}"}}},
		{kind: areas, title: "Memory used by model", unit: bytes_, queries: []query{{by("sum", "modelName", used), "{{modelName}}"}}},
		{title: "Nodes with the highest utilisation", unit: share, full: true, link: toNode, queries: []query{
			{"topk(10, " + by("avg", perNode, util) + ")", nodeName},
		}},
	}}
}

// Links of the columns of tables.
var (
	nodeOf     = link{"GPUs of the node", "/d/gpupilot-node?var-node=${__value.raw}" + inTime}
	xidCatalog = link{"What to do", runbooks + "gpu.md#an-xid-error"}
)

// gpuAlerts are the names of the alerts on GPUs and their exporters.
func gpuAlerts() (names []string) {
	for _, f := range ruleFiles() {
		for _, g := range f.groups {
			for _, a := range g.alerts {
				if f.name != "autoscaler" {
					names = append(names, a.name)
				}
			}
		}
	}
	return names
}

func fleetProblems() row {
	xids := by("max", perXID, relabel(fieldOf(gpu.XIDErrors).query(scoped, nil)+" > 0", "xid", "err_code"))
	idle := fieldOf(gpu.GPUUtil).allocated(scoped, func(s string) string { return "avg_over_time(" + s + "[1h])" })
	return row{title: "Problems", panels: []panel{
		{
			kind: rows, title: "GPUs with an XID error", about: "The last XID error of each GPU. The value stays until another one comes or the exporter restarts.",
			queries: []query{{expr: by("max", "node, gpu, xid", withNode(xids))}},
			columns: []column{{from: "node", to: "Node", link: nodeOf}, {from: "gpu", to: "GPU"}, {from: "xid", to: "XID", link: xidCatalog}},
		},
		{
			kind: rows, title: "Allocated GPUs by utilisation, lowest first", about: "Mean of the last hour.",
			queries: []query{{expr: "bottomk(20, " + by("max", "node, gpu", withNode(by("max", perGPU, idle))) + ")"}},
			columns: []column{{from: "node", to: "Node", link: nodeOf}, {from: "gpu", to: "GPU"}, {from: "Value", to: "Utilisation", unit: share, levels: levels{{0, bad}, {idleShare, fine}}}},
		},
		{
			title: "Throttled GPUs", about: "Share of time for which GPUs were held back, by reason, over all GPUs. Of gpupilot-agent: power and thermal, and the other reasons with --enable-exporter-metrics.", unit: share, levels: throttled,
			queries: []query{{by("avg", "reason", "rate(gpupilot_gpu_throttle_seconds_total{"+scoped+"}[$__rate_interval])"), "{{reason}}"}},
		},
		{
			title: "Exporters that do not answer", about: "Targets of the chosen jobs.", unit: count, levels: none, link: toRunbooks,
			queries: []query{{`sum by (job) (up{cluster=~"$cluster",job=~"$job"} == bool 0) * on (job) group_left () ` + by("group", "job", anyGPU.query(scoped, nil)), "{{job}}"}},
		},
	}}
}
