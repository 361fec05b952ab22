// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/gpupilot/gpupilot/internal/gpu"

// gpuName is the legend of a GPU, and of an instance of it.
const gpuName = nodeName + " GPU {{gpu}} {{GPU_I_ID}}"

// optional says which fields the built-in collectors lack.
const optional = " Not collected by default: add the field to the collectors file."

// node shows every GPU of the chosen nodes: what is on the dashboard that is known as
// 12239, and what is needed to find out what is wrong with a GPU.
func node() board {
	return board{
		name: "node", title: "GPUPilot / Node and GPU",
		description: "Temperature, power, clocks, utilisation, memory, throttling, errors and links of single GPUs. For gpupilot-agent and dcgm-exporter, with the metric names of each release.",
		variables:   []variable{datasource(), clusters(), jobs(), nodes(), gpus()},
		marks:       changes(`{cluster=~"$cluster"}`),
		rows:        []row{nodeNow(), nodeHeat(), nodeWork(), nodeMemory(), nodeThrottling(), nodeErrors(), nodeLinks()},
	}
}

// over is a line for each GPU.
func over(title string, id gpu.FieldID, unit string, more ...func(*panel)) panel {
	p := panel{title: title, unit: unit, queries: []query{{by("max", perPart, fieldOf(id).query(onGPUs, nil)), gpuName}}}
	for _, f := range more {
		f(&p)
	}
	return p
}

// rising is a line for each GPU with the rate of a counter.
func rising(title string, id gpu.FieldID, unit string, more ...func(*panel)) panel {
	p := panel{title: title, unit: unit, queries: []query{{by("max", perPart, fieldOf(id).query(onGPUs, rate("$__rate_interval"))), gpuName}}}
	for _, f := range more {
		f(&p)
	}
	return p
}

func toOne(p *panel) { p.full = true }

func in(l levels) func(*panel) { return func(p *panel) { p.levels = l } }

// Levels of a GPU. Its own limits are its model's: an H100 slows down from some 87 °C on, its memory from some 95 °C. An
// inference server keeps 90 % of the memory for itself, so that only more than that is noticed.
var (
	hot        = upTo(80, 87)
	hotMemory  = upTo(88, 95)
	fullMemory = upTo(0.95, 0.99)
	throttled  = upTo(throttledShare, 0.5) // from where alerts fire
)

func about(text string) func(*panel) { return func(p *panel) { p.about = text } }

func nodeNow() row {
	one := func(title, aggregation string, id gpu.FieldID, unit string, more ...func(*panel)) panel {
		p := panel{kind: single, title: title, unit: unit, queries: []query{{expr: aggregation + "(" + by("max", perPart, fieldOf(id).query(onGPUs, nil)) + ")"}}}
		for _, f := range more {
			f(&p)
		}
		return p
	}
	return row{title: "Now", panels: []panel{
		{kind: single, title: "GPUs", queries: []query{{expr: "count(" + by("max", perGPU, anyGPU.query(onGPUs, nil)) + ")"}}},
		one("Temperature, highest", "max", gpu.GPUTemp, celsius, in(hot)),
		{kind: single, title: "Power", unit: watts, queries: []query{{expr: "sum(" + by("max", perGPU, fieldOf(gpu.PowerUsage).query(onGPUs, nil)) + ")"}}},
		one("Utilisation", "avg", gpu.GPUUtil, share),
		one("Memory used", "sum", gpu.FBUsed, bytes_),
		{kind: single, title: "Energy", about: "In the time range shown.", unit: joules, queries: []query{{expr: "sum(" + by("max", perGPU, fieldOf(gpu.TotalEnergy).query(onGPUs, increase("$__range"))) + ")"}}},
	}}
}

func nodeHeat() row {
	return row{title: "Temperature, power and clocks", panels: []panel{
		over("GPU temperature", gpu.GPUTemp, celsius, in(hot)),
		over("Memory temperature", gpu.MemoryTemp, celsius, in(hotMemory)),
		over("GPU power usage", gpu.PowerUsage, watts),
		rising("Power from the energy counter", gpu.TotalEnergy, watts, about("Mean power between two scrapes. It includes peaks that the sampled power misses.")),
		over("GPU SM clocks", gpu.SMClock, hertz),
		over("Memory clocks", gpu.MemClock, hertz),
	}}
}

func nodeWork() row {
	return row{title: "Utilisation", panels: []panel{
		over("GPU utilisation", gpu.GPUUtil, share, toOne, about("Share of time in which a kernel runs. It says nothing about how much of the GPU the kernel uses.")),
		over("Graphics engine active", gpu.GREngineActive, share, toOne, about("As the utilisation, but measured by the GPU, and of MIG instances, too.")),
		over("Tensor core utilisation", gpu.TensorActive, share, toOne),
		over("DRAM active", gpu.DRAMActive, share, toOne, about("Share of cycles in which the memory interface moves data. Near 0.8, memory bandwidth is the limit.")),
		over("SM active", gpu.SMActive, share, toOne, about("Share of the multiprocessors with work."+optional)),
		over("SM occupancy", gpu.SMOccupancy, share, toOne, about("Warps that are resident, of the most that could be."+optional)),
		over("Encoder utilisation", gpu.EncUtil, share, toOne),
		over("Decoder utilisation", gpu.DecUtil, share, toOne),
	}}
}

func nodeMemory() row {
	used, free := fieldOf(gpu.FBUsed).query(onGPUs, nil), fieldOf(gpu.FBFree).query(onGPUs, nil)
	return row{title: "Memory", panels: []panel{
		over("Framebuffer memory used", gpu.FBUsed, bytes_),
		{title: "Framebuffer memory used, share", unit: share, full: true, levels: fullMemory, queries: []query{{
			by("max", perPart, used) + "\n/\n(\n" + indent(by("max", perPart, used)+"\n+\n"+by("max", perPart, free)) + "\n)", gpuName,
		}}},
		over("Memory copy utilisation", gpu.MemCopyUtil, share, toOne, about("Share of time in which memory was read or written.")),
		over("Framebuffer memory free", gpu.FBFree, bytes_),
	}}
}

func nodeThrottling() row {
	events := "max by (" + perGPU + ", clock_event) (DCGM_EXP_CLOCK_EVENTS_COUNT{" + onGPUs + "})"
	return row{title: "Throttling", panels: []panel{
		{
			title: "Throttled time by reason", about: "Share of time for which the GPU was held back. Of gpupilot-agent, with every collectors file: power and thermal, and the other reasons with --enable-exporter-metrics.", unit: share,
			queries: []query{{by("max", perGPU+", reason", own(`rate(gpupilot_gpu_throttle_seconds_total{`+scoped+`}[$__rate_interval])`, `hostname=~"$node",gpu=~"$gpu"`)), nodeName + " GPU {{gpu}} {{reason}}"}},
		},
		{title: "Clock events", about: "Collections of the last five minutes in which a reason held the clocks down." + optional, unit: count, queries: []query{{events, nodeName + " GPU {{gpu}} {{clock_event}}"}}},
		rising("Throttled by power", gpu.PowerViolation, share, toOne, in(throttled), about("Share of time below the wanted clocks because of the power limit."+optional)),
		rising("Throttled by temperature", gpu.ThermalViolation, share, toOne, in(throttled), about("Share of time below the wanted clocks because of heat."+optional)),
	}}
}

func nodeErrors() row {
	xid := relabel(fieldOf(gpu.XIDErrors).query(onGPUs, nil), "xid", "err_code")
	counts := "gpupilot_xid_errors_total{" + scoped + "}"
	return row{title: "Errors", panels: []panel{
		{kind: states, title: "Last XID error", levels: none, link: xidCatalog, about: "0: none. The value stays until another error comes or the exporter restarts.", queries: []query{{by("max", perGPU, xid), gpuName}}},
		{
			title: "XID errors", levels: none, link: xidCatalog, about: "In the time range of a step, by code. Of gpupilot-agent, with every collectors file.", unit: count,
			// A code has no series before its first error, which increase() therefore misses.
			queries: []query{{by("max", perXID, own("("+counts+" unless last_over_time("+counts+"[1h] offset $__rate_interval)\nor increase("+counts+"[$__rate_interval]))", `hostname=~"$node",gpu=~"$gpu"`)), nodeName + " GPU {{gpu}} XID {{xid}}"}},
		},
		{
			title: "ECC errors since the driver was loaded", about: "Volatile counters." + optional, unit: count, queries: []query{
				{by("max", perGPU, fieldOf(gpu.ECCSBEVolatile).query(onGPUs, nil)), gpuName + " corrected"},
				{by("max", perGPU, fieldOf(gpu.ECCDBEVolatile).query(onGPUs, nil)), gpuName + " uncorrected"},
			},
		},
		{
			title: "Remapped rows", unit: count, levels: some, queries: []query{
				{by("max", perGPU, fieldOf(gpu.CorrRemappedRows).query(onGPUs, nil)), gpuName + " corrected"},
				{by("max", perGPU, fieldOf(gpu.UncorrRemappedRows).query(onGPUs, nil)), gpuName + " uncorrected"},
			},
		},
		{
			kind: states, title: "Row remapping failed", levels: none, about: "1: a row could not be remapped, and the GPU has to be replaced.",
			queries: []query{{by("max", perGPU, fieldOf(gpu.RowRemapFailure).query(onGPUs, nil)), gpuName}},
		},
		{
			kind: states, title: "Row remapping or page retirement pending", levels: some, about: "1 or more: a reset of the GPU completes it." + optional,
			queries: []query{
				{by("max", perGPU, fieldOf(gpu.RowRemapPending).query(onGPUs, nil)), gpuName + " rows"},
				{by("max", perGPU, fieldOf(gpu.RetiredPending).query(onGPUs, nil)), gpuName + " pages"},
			},
		},
		{
			title: "Age of the newest values", about: "Of gpupilot-agent: a GPU that cannot be read gets older.", unit: seconds, levels: upTo(10, staleSeconds),
			queries: []query{{by("max", perGPU, own(`(time() - gpupilot_device_last_success_timestamp_seconds{`+scoped+`})`, `hostname=~"$node",gpu=~"$gpu"`)), gpuName}},
		},
	}}
}

func nodeLinks() row {
	return row{title: "PCIe and NVLink", panels: []panel{
		over("PCIe sent", gpu.PCIeTxBytes, bytesPS), over("PCIe received", gpu.PCIeRxBytes, bytesPS),
		over("NVLink bandwidth", gpu.NVLinkBandwidth, bytesPS),
		rising("PCIe replays", gpu.PCIeReplayCounter, perSec),
		{
			title: "NVLink errors", about: "By type, over all links." + optional, unit: perSec, queries: []query{
				{by("max", perGPU, fieldOf(gpu.NVLinkCRCFlitErrors).query(onGPUs, rate("$__rate_interval"))), gpuName + " CRC flit"},
				{by("max", perGPU, fieldOf(gpu.NVLinkCRCDataErrors).query(onGPUs, rate("$__rate_interval"))), gpuName + " CRC data"},
				{by("max", perGPU, fieldOf(gpu.NVLinkReplayErrors).query(onGPUs, rate("$__rate_interval"))), gpuName + " replay"},
				{by("max", perGPU, fieldOf(gpu.NVLinkRecoveryErrors).query(onGPUs, rate("$__rate_interval"))), gpuName + " recovery"},
			},
		},
		{
			title: "NVLinks down", about: "Links that were up since the agent started and are not now. Of gpupilot-agent with NVML.", unit: count, levels: none,
			queries: []query{{by("max", perGPU, own(`gpupilot_nvlinks_down{`+scoped+`}`, `hostname=~"$node",gpu=~"$gpu"`)), gpuName}},
		},
	}}
}
