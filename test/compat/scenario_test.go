// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"fmt"
	"strings"
)

// scenario is one way to run the two programs.
type scenario struct {
	name string
	// args and env are given to both; {dir} in them is the scenario's folder.
	args, env []string
	// csv is the collectors file. Without one, theirs gets its own default file
	// and ours its built-in list.
	csv string
	// state are the lines of the fake library's file, later those that come when
	// both run.
	state, later []string
	// pods are what the kubelet says, with -k.
	pods []pod
	// jobs are files of the folder {dir}/jobs.
	jobs map[string]string
	// cluster is a service account and an API server, which has the pods and the
	// collectors file, with label fields, as the ConfigMap gpus/metrics.
	cluster bool
	// web serves with TLS and a password.
	web bool
	// page is how the page is asked for.
	page request
	// requests are asked besides.
	requests []request
	// reload sends SIGHUP, and compares the page once more.
	reload bool
	// since is the exporter's first release that has what this is about.
	since string
}

// pod holds devices, in a container named after its name.
type pod struct {
	name, resource string
	devices        []string
}

const namespace = "team"

// uuid is the fake library's UUID of a GPU, migUUID that of an instance.
func uuid(gpu int) string { return fmt.Sprintf("GPU-48323030-6670-4000-8000-%012x", gpu) }

func migUUID(gpu, instance int) string {
	return fmt.Sprintf("MIG-48323030-6670-5000-8000-%04x%08x", gpu, instance)
}

// fields are collectors that every release since 3.x knows.
const fields = `
# Format: field, type, help
DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK,gauge,Memory clock frequency (in MHz).
DCGM_FI_DEV_MEMORY_TEMP, gauge, Memory temperature (in C).
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Total energy consumption since boot (in mJ).
DCGM_FI_DEV_PCIE_REPLAY_COUNTER, counter, Total number of PCIe retries.
DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).
DCGM_FI_DEV_MEM_COPY_UTIL, gauge, Memory utilization (in %).
DCGM_FI_DEV_ENC_UTIL, gauge, Encoder utilization (in %).
DCGM_FI_DEV_DEC_UTIL ,gauge, Decoder utilization (in %).
DCGM_FI_DEV_XID_ERRORS, gauge, Value of the last XID error encountered.
DCGM_FI_DEV_POWER_VIOLATION, counter, Throttling duration due to power constraints (in us).
DCGM_FI_DEV_THERMAL_VIOLATION, counter, Throttling duration due to thermal constraints (in us).
DCGM_FI_DEV_FB_FREE, gauge,"Frame buffer memory free, in MB."
DCGM_FI_DEV_FB_USED, gauge, Frame buffer memory used (in MB).
DCGM_FI_DEV_FB_RESERVED, gauge, Frame buffer memory reserved (in MB).
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL, counter, Total number of single-bit volatile ECC errors.
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Total number of double-bit volatile ECC errors.
DCGM_FI_DEV_RETIRED_SBE, counter, Total number of retired pages due to single-bit errors.
DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, counter, Total number of NVLink flow-control CRC errors.
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, Total number of NVLink bandwidth counters for all lanes.
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS, counter, Number of remapped rows for uncorrectable errors
DCGM_FI_DEV_ROW_REMAP_FAILURE, gauge, Whether remapping of rows has failed
DCGM_FI_PROF_GR_ENGINE_ACTIVE, gauge, Ratio of time the graphics engine is active.
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, Ratio of cycles the tensor (HMMA) pipe is active.
DCGM_FI_PROF_DRAM_ACTIVE, gauge, Ratio of cycles the device memory interface is active.
DCGM_FI_PROF_PCIE_TX_BYTES, gauge, The rate of data transmitted over the PCIe bus.
DCGM_FI_DRIVER_VERSION, label, Driver Version
`

// labelFields are fields that may only be labels.
const labelFields = `DCGM_FI_NVML_VERSION, label, NVML Version
DCGM_FI_DEV_BRAND, label, Device Brand
DCGM_FI_DEV_SERIAL, label, Device Serial Number
DCGM_FI_DEV_VBIOS_VERSION, label, VBIOS version of the device
DCGM_FI_DEV_OEM_INFOROM_VER, label, OEM inforom version
DCGM_FI_DEV_INFOROM_IMAGE_VER, label, Inforom image version
`

// busy is a node whose values are the same at all times.
var busy = []string{
	"gpus 4",
	"gpu * energy 123456789", "gpu * util 37", "gpu * mem_util 12", "gpu * power 378.461", "gpu * fb_used 40960",
	"gpu * gpm_gr 0.5", "gpu * gpm_tensor 0.123456", "gpu * gpm_dram 1e-7", "gpu * gpm_pcie_tx 3", "gpu * nvlink_tx 1000000",
	"gpu 1 util 100", "gpu 1 retired_sbe 3", "gpu 2 unsupported mem_temp",
}

func with(more ...string) []string { return append(append([]string{}, busy...), more...) }

var mig = with("gpu 1 mig 1g.18gb 3", "gpu 2 mig 3g.71gb 2", "gpu 1 instance 1 fb_used 500", "gpu 1 instance 1 gpm_gr 0.25")

// scenarios are what is compared.
func scenarios() []scenario {
	all := append(collectorScenarios(), deviceScenarios()...)
	all = append(all, partScenarios()...)
	all = append(all, podScenarios()...)
	all = append(all, failureScenarios()...)
	all = append(all, webScenarios()...)
	return append(all, startScenarios()...)
}

func collectorScenarios() []scenario {
	return []scenario{
		{name: "default collectors", state: busy},
		{name: "a collectors file", csv: fields, state: busy},
		{name: "label fields", csv: fields + labelFields, state: busy},
		{name: "a number as a label", csv: fields + "DCGM_FI_DEV_FAN_SPEED, label, Fan\nDCGM_FI_DEV_POWER_MGMT_LIMIT, label, Limit\n", state: with("gpu * fan 30")},
		{name: "names of 1.x", csv: "dcgm_sm_clock, gauge, SM clock\ndcgm_gpu_utilization, gauge, Utilization\ndcgm_fb_used, gauge, Used\ndcgm_total_energy_consumption, counter, Energy\n", state: busy},
		{name: "all types", csv: "DCGM_FI_DEV_SM_CLOCK, histogram, A\nDCGM_FI_DEV_MEM_CLOCK, summary, B\nDCGM_FI_DEV_GPU_UTIL, counter, C\n", state: busy},
		{name: "further fields", csv: furtherFields, state: busy},
		{name: "exporter counters", csv: fields + "DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs\nDCGM_EXP_CLOCK_EVENTS_COUNT, gauge, Clock events\n", state: with("gpu * clock_reasons 0", "gpu 1 clock_reasons 132", "gpu 2 clock_reasons 1"), later: []string{"gpu 0 xid 31", "gpu 1 xid 45"}},
		{name: "health and P2P", since: "4.2.0", csv: fields + "DCGM_EXP_GPU_HEALTH_STATUS, gauge, Health\nDCGM_EXP_P2P_STATUS, gauge, P2P\n", state: busy},
		{name: "windows", csv: fields + "DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs\n", args: []string{"-x", "60000"}, state: busy, later: []string{"gpu 0 xid 31"}},
		{name: "an XID error", csv: fields, state: busy, later: []string{"gpu 0 xid 79", "gpu 1 xid 999", "gpu 2 xid 31"}},
		{name: "a field twice", csv: "DCGM_FI_DEV_SM_CLOCK, gauge, A\nDCGM_FI_DEV_SM_CLOCK, gauge, A\n", state: busy},
		scenario{name: "a ConfigMap", args: []string{"-m", "gpus:metrics"}, csv: fields, state: busy}.inCluster(),
		scenario{name: "a ConfigMap that is not there", args: []string{"-m", "gpus:others"}, csv: fields, state: busy}.inCluster(),
		{name: "reload", csv: fields, state: busy, reload: true},
	}
}

// furtherFields are some that no list of dcgm-exporter's has.
const furtherFields = `DCGM_FI_DEV_VIDEO_CLOCK, gauge, Video clock
DCGM_FI_DEV_PSTATE, gauge, Performance state
DCGM_FI_DEV_FAN_SPEED, gauge, Fan
DCGM_FI_DEV_POWER_MGMT_LIMIT, gauge, Power limit
DCGM_FI_DEV_FB_TOTAL, gauge, Memory
DCGM_FI_DEV_FB_USED_PERCENT, gauge, Memory used
DCGM_FI_DEV_PCIE_LINK_GEN, gauge, PCIe generation
DCGM_FI_DEV_PCIE_LINK_WIDTH, gauge, PCIe width
DCGM_FI_DEV_MAX_SM_CLOCK, gauge, Highest SM clock
DCGM_FI_DEV_SLOWDOWN_TEMP, gauge, Slow-down temperature
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS, gauge, Throttle reasons
DCGM_FI_DEV_ROW_REMAP_PENDING, gauge, Rows to remap
DCGM_FI_PROF_SM_ACTIVE, gauge, SM active
DCGM_FI_PROF_SM_OCCUPANCY, gauge, SM occupancy
DCGM_FI_PROF_PIPE_FP16_ACTIVE, gauge, FP16
DCGM_FI_PROF_NVLINK_TX_BYTES, gauge, NVLink
DCGM_FI_DEV_COUNT, gauge, Number of GPUs
DCGM_FI_CUDA_DRIVER_VERSION, gauge, CUDA version
DCGM_FI_DEV_NVML_INDEX, gauge, NVML index
DCGM_FI_DEV_MINOR_NUMBER, gauge, Minor number
`

func deviceScenarios() []scenario {
	var all []scenario
	for _, d := range []string{"f", "g", "g:0,2-3", "g:3"} {
		all = append(all, scenario{name: "-d " + d, args: []string{"-d", d}, csv: fields, state: busy})
	}
	for _, d := range []string{"f", "g", "i", "i:8,10", "i:8-9", "g+i"} {
		all = append(all, scenario{name: "MIG, -d " + d, args: []string{"-d", d}, csv: fields, state: mig})
	}
	for _, d := range []string{"g:77", "i:77", "f:0", "x", "g:0-1-2", "g:a", "g:0:1", ""} {
		all = append(all, scenario{name: fmt.Sprintf("-d %q", d), args: []string{"-d", d}, csv: fields, state: busy})
	}
	return append(all,
		scenario{name: "a model with blanks", args: []string{"-rbmn"}, csv: fields, state: append([]string{"model NVIDIA  H100 80GB HBM3"}, busy...)},
		scenario{name: "a model with quotes", csv: fields, state: append([]string{`model NVIDIA "Q" A\100`}, busy...)},
		scenario{name: "no host name", args: []string{"-n"}, csv: fields, state: busy},
		scenario{name: "a node name", env: []string{"NODE_NAME=node-7"}, csv: fields, state: busy},
		scenario{name: "old namespace without pods", args: []string{"-o"}, csv: fields, state: busy},
		scenario{name: "a remote host engine", args: []string{"-r", "localhost:5555"}, csv: fields, state: busy},
		scenario{name: "variables", env: []string{
			"DCGM_EXPORTER_DEVICES_STR=g:1", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME=true", "DCGM_EXPORTER_USE_OLD_NAMESPACE=true", "DCGM_EXPORTER_KUBERNETES=false",
		}, csv: fields, state: busy},
		scenario{name: "job mapping", args: []string{"--hpc-job-mapping-dir", "{dir}/jobs"}, csv: fields, state: mig, jobs: map[string]string{
			"0": "job-1\n", "3": "job-2\njob-3\n", "1.7": "job-4\n", "1.8": "", "2": "whole\n", "notes": "x\n",
		}},
	)
}

// switchFields and cpuFields are of switches, and of CPUs and their cores.
const (
	switchFields = `DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT, gauge, Temperature
DCGM_FI_DEV_NVSWITCH_THROUGHPUT_TX, counter, Sent
DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS, gauge, Fatal errors
`
	linkFields = `DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX, counter, Sent
DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS, counter, CRC errors
`
	cpuFields = `DCGM_FI_DEV_CPU_UTIL_TOTAL, gauge, Busy
DCGM_FI_DEV_CPU_TEMP_CURRENT, gauge, Temperature
DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT, gauge, Power
`
)

func partScenarios() []scenario {
	nodes := with("switches 2", "cpus 2 4", "part nvswitch 0 858 45", "part nvswitch 1 858 47", "part cpu 0 1110 61.5", "part cpucore 3 1100 0.25")
	links := with("switches 2", "links 2")
	return []scenario{
		{name: "switches", csv: fields + switchFields, state: nodes},
		{name: "switches, -s g:1", args: []string{"-s", "g:1"}, csv: fields + switchFields, state: nodes},
		{name: "CPUs", csv: fields + cpuFields, state: nodes},
		{name: "CPUs, -p g:0", args: []string{"-p", "g:0"}, csv: fields + cpuFields, state: nodes},
		{name: "CPUs, -p i:0-2", args: []string{"-p", "i:0-2"}, csv: fields + cpuFields, state: nodes},
		{name: "CPUs with a label field", csv: fields + cpuFields + "DCGM_FI_DEV_CPU_MODEL, label, Model\n", state: nodes},
		// Links' ids have another form since.
		{name: "links", since: "4.8.0", csv: fields + linkFields, state: links},
		{name: "links, -s i:0", since: "4.8.0", args: []string{"-s", "i:0"}, csv: fields + linkFields, state: links},
	}
}

func podScenarios() []scenario {
	const gpu, shared = "nvidia.com/gpu", "nvidia.com/gpu.shared"
	k := func(name string, state []string, args []string, pods ...pod) scenario {
		return scenario{
			name: "pods: " + name, csv: fields, state: state, pods: pods,
			args: append([]string{"-k", "--pod-resources-kubelet-socket", "{dir}/kubelet.sock"}, args...),
		}
	}
	sharers := []pod{{"a", gpu, []string{uuid(0) + "::0"}}, {"b", gpu, []string{uuid(0) + "::1"}}, {"c", gpu, []string{uuid(1) + "::0"}}}
	plain := []pod{{"train", gpu, []string{uuid(0), uuid(2)}}, {"web", "example.com/nic", []string{"eth0"}}, {"infer", gpu, []string{uuid(1)}}}
	instances := []pod{{"m0", "nvidia.com/mig-1g.18gb", []string{migUUID(1, 7)}}, {"m1", "nvidia.com/mig-3g.71gb", []string{migUUID(2, 8)}}, {"whole", gpu, []string{uuid(0)}}}
	noSocket := k("no kubelet", busy, nil)
	noSocket.args[2] = "{dir}/none.sock"
	exp := k("exporter counters", busy, nil, plain...)
	exp.later = []string{"gpu 0 xid 31"}
	exp.csv += "DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs\n"
	jobs := k("job mapping", busy, []string{"--hpc-job-mapping-dir", "{dir}/jobs"}, plain...)
	jobs.jobs = map[string]string{"0": "job-1\njob-2\n", "1": "job-3\n"}
	return []scenario{
		k("whole GPUs", busy, nil, plain...),
		k("default collectors", busy, nil, plain...).defaults(),
		k("none", busy, nil),
		noSocket,
		k("device names", busy, []string{"--kubernetes-gpu-id-type", "device-name"}, pod{"a", gpu, []string{"nvidia0"}}, pod{"b", gpu, []string{"nvidia3"}}),
		k("MIG", mig, nil, instances...),
		k("MIG, old namespace", mig, []string{"-o"}, instances...),
		k("GKE MIG", mig, []string{"--kubernetes-gpu-id-type", "device-name"}, pod{"a", gpu, []string{"nvidia1/gi8"}}, pod{"b", gpu, []string{"nvidia0"}}),
		k("GKE sharing", busy, []string{"--kubernetes-gpu-id-type", "device-name"}, pod{"a", gpu, []string{"nvidia0/vgpu0"}}, pod{"b", gpu, []string{"nvidia1/vgpu2"}}),
		k("sharing, one each", busy, nil, pod{"a", gpu, []string{uuid(0) + "::3"}}, pod{"b", gpu, []string{uuid(1) + "::0"}}),
		k("sharing, several", busy, nil, sharers...),
		k("gpu.shared", busy, nil, pod{"a", shared, []string{uuid(0) + "::3"}}),
		k("own resource names", busy, []string{"--nvidia-resource-names", "nvidia.com/a100,corp/gpu"}, pod{"a", "nvidia.com/a100", []string{uuid(0)}}, pod{"b", "corp/gpu", []string{uuid(1)}}, pod{"c", "corp/other", []string{uuid(2)}}),
		k("old namespace", busy, []string{"-o"}, plain...),
		exp,
		jobs,
		k("an unknown kind of ids", busy, []string{"--kubernetes-gpu-id-type", "index"}, plain...),
		k("an empty socket", busy, []string{"--pod-resources-kubelet-socket", ""}, plain...),
		k("a bad expression for labels", busy, []string{"--kubernetes-enable-pod-labels", "--kubernetes-pod-label-allowlist-regex", "("}, plain...).inCluster(),
		k("one of two expressions for labels is bad", busy, []string{"--kubernetes-enable-pod-labels", "--kubernetes-pod-label-allowlist-regex", "^app$,("}, plain...).inCluster(),
		k("labels", busy, []string{"--kubernetes-enable-pod-labels"}, plain...).inCluster(),
		k("some labels and UIDs", busy, []string{"--kubernetes-enable-pod-labels", "--kubernetes-pod-label-allowlist-regex", "^app$", "--kubernetes-enable-pod-uid"}, plain...).inCluster(),
		k("virtual GPUs", busy, []string{"--kubernetes-virtual-gpus"}, sharers...),
		k("virtual GPUs, GKE", busy, []string{"--kubernetes-virtual-gpus", "--kubernetes-gpu-id-type", "device-name"}, pod{"a", gpu, []string{"nvidia0/vgpu0"}}, pod{"b", gpu, []string{"nvidia0/vgpu1"}}),
	}
}

func (s scenario) inCluster() scenario {
	s.cluster = true
	s.env = append(s.env, "NODE_NAME=node-7")
	return s
}

func (s scenario) defaults() scenario {
	s.csv = ""
	return s
}

func failureScenarios() []scenario {
	return []scenario{
		{name: "no profiling", csv: fields, state: with("profiling MODULE_NOT_LOADED")},
		{name: "one GPU without profiling", csv: fields, state: with("gpu 2 unsupported gpm")},
		{name: "blank values", csv: fields, state: with("gpu 0 util nan", "gpu 1 power nan", "gpu 3 gpm_gr nan")},
		{name: "a value that cannot be", csv: fields, state: with("gpu 0 util 4294967295")},
		{name: "a lost GPU", csv: fields, state: with("gpu 3 lost")},
		{name: "a GPU that cannot be read", csv: fields, state: with("gpu 3 fail EntityGetLatestValues GPU_IS_LOST")},
		{name: "no GPUs", csv: fields, state: []string{"gpus 0"}},
		{name: "no driver", csv: fields, state: with("driver not-loaded")},
		{name: "a lost host engine", csv: fields, state: with("engine lost")},
	}
}

func webScenarios() []scenario {
	get := func(path string) request { return request{path: path} }
	return []scenario{
		{name: "paths", csv: fields, state: busy, requests: []request{
			get("/"),
			{path: "/health", body: true},
			get("/metrics/"), get("/nothing"), get("/debug/pprof/"),
			{method: "HEAD", path: "/metrics"},
			{method: "POST", path: "/metrics"},
			{method: "DELETE", path: "/health"},
			{method: "POST", path: "/"},
			{path: "/metrics", header: map[string]string{"Accept-Encoding": "gzip"}},
			{path: "/metrics", header: map[string]string{"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}},
		}},
		{
			name: "TLS and a password", csv: fields, state: busy, web: true, args: []string{"--web-config-file", "{dir}/web.yml"},
			page: request{path: "/metrics", user: "prometheus", pass: password},
			requests: []request{
				get("/metrics"), get("/health"), get("/"), {path: "/metrics", user: "prometheus", pass: "wrong"}, {path: "/metrics", plain: true},
			},
		},
		{name: "a web configuration that is not there", csv: fields, state: busy, args: []string{"--web-config-file", "{dir}/none.yml"}},
	}
}

func startScenarios() []scenario {
	s := func(name, csv string, args ...string) scenario {
		return scenario{name: name, csv: csv, state: busy, args: args}
	}
	return []scenario{
		s("an unknown field", "DCGM_FI_DEV_NOPE, gauge, Nope\n"+fields),
		s("two columns", "DCGM_FI_DEV_SM_CLOCK, gauge\n"+fields),
		s("a type that is none", "DCGM_FI_DEV_SM_CLOCK, gaugge, Clock\n"+fields),
		s("a quote behind a blank", "DCGM_FI_DEV_SM_CLOCK, gauge, \"Clock, in MHz\"\n"),
		s("an indented comment", "  # no comment\n"+fields),
		s("an empty file", "# nothing\n"),
		s("no file", fields, "-f", "{dir}/none.csv"),
		s("an unknown flag", fields, "--no-such-flag"),
		s("a bad number", fields, "-c", "soon"),
		s("a bad log level", fields, "--dcgm-log-level", "LOUD"),
		s("a bad switch selection", fields, "-s", "z"),
		s("a bad CPU selection", fields, "-p", "z"),
		s("a ConfigMap without a cluster", fields, "-m", "gpu:metrics"),
		s("the version", fields, "--version"),
		s("help", fields, "--help"),
		s("an interval of 1 ms", fields, "-c", "1"),
		s("a window of 0", fields+"DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs\n", "-x", "0", "--clock-events-count-window-size", "0"),
		s("a window of two days", fields+"DCGM_EXP_XID_ERRORS_COUNT, gauge, XIDs\n", "-x", "172800000"),
		s("an argument", fields, "serve", "-d", "g:1", "--no-such-flag"),
		s("a bool with a value of its own", fields, "--debug", "true", "-d", "g:1"),
		s("long flags with one dash", fields, "-devices", "g:1"),
		s("bools with a value", fields, "--kubernetes=false", "--debug=true"),
	}
}

// flags are the long names of the flags that the scenario's arguments have.
func (s scenario) flags() []string {
	var names []string
	for _, a := range s.args {
		if a == "serve" {
			return names // what follows is no flag
		}
		if name, ok := strings.CutPrefix(a, "--"); ok && len(name) > 1 {
			name, _, _ = strings.Cut(name, "=")
			names = append(names, name)
		}
	}
	return names
}
