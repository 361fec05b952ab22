// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/flags"
	"github.com/gpupilot/gpupilot/internal/base/listen"
)

// compat holds the other flags of dcgm-exporter, up to 4.8.4.
type compat struct {
	oldNamespace  bool
	configMap     string
	dashedModel   bool
	virtualGPUs   bool
	gpuIDType     string
	podLabels     bool
	podLabelAllow []string
	podUID        bool
	jobDir        string
	xidWindow     int
	clockWindow   int

	webConfig     string
	readTimeout   time.Duration
	writeTimeout  time.Duration
	maxScrapes    int
	systemdSocket bool
	requireGPUs   bool
	pprof         bool

	noValidate bool
	bindWatch  bool
	bindPoll   time.Duration

	configFile      string
	inline          bool // configFile contains the collectors
	switchDevices   string
	cpuDevices      string
	dra             bool
	exporterMetrics bool
	containerLabels bool
	runtimeSocket   string
	keepAge         time.Duration
	keepSamples     int

	fakeGPUs        bool
	dcgmLog         bool
	dcgmLogLevel    string
	dump            bool
	dumpDirectory   string
	dumpRetention   int
	dumpCompression bool
}

func compatDefaults() compat {
	return compat{
		configMap: "none", gpuIDType: "uid", xidWindow: 300_000, clockWindow: 300_000,
		readTimeout: 10 * time.Second, writeTimeout: 30 * time.Second, maxScrapes: 16,
		bindPoll: time.Second, switchDevices: "f", cpuDevices: "f", keepAge: 10 * time.Minute,
		dcgmLogLevel: "NONE", dumpDirectory: "/tmp/dcgm-exporter-debug", dumpRetention: 24, dumpCompression: true,
	}
}

func (c *compat) options() []option {
	const day = 86_400_000
	return []option{
		{
			"use-old-namespace", "o", "DCGM_EXPORTER_USE_OLD_NAMESPACE", &c.oldNamespace,
			"labels pod_name, pod_namespace, container_name and uuid instead of pod, namespace, container and UUID", nil,
		},
		{
			"configmap-data", "m", "DCGM_EXPORTER_CONFIGMAP_DATA", &c.configMap,
			"`NAMESPACE:NAME` of a ConfigMap with the collectors under the key metrics, instead of a file; changes apply at once", checkConfigMap(&c.configMap),
		},
		{
			"replace-blanks-in-model-name", "rbmn", "DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME", &c.dashedModel,
			"write modelName with dashes instead of spaces", nil,
		},
		{
			"kubernetes-virtual-gpus", "", "KUBERNETES_VIRTUAL_GPUS", &c.virtualGPUs,
			"write series for each container that shares a device, with the label vgpu", nil,
		},
		{
			"kubernetes-gpu-id-type", "", "DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE", &c.gpuIDType,
			"`kind` of the device plugin's ids, uid or device-name; has no effect: both kinds are recognised", checkIDType(&c.gpuIDType),
		},
		{
			"kubernetes-enable-pod-labels", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", &c.podLabels,
			"add the pods' labels; needs a service account that can list and watch pods", nil,
		},
		{
			"kubernetes-pod-label-allowlist-regex", "", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", &c.podLabelAllow,
			"add only pod labels whose key contains a match of one of these regular `expressions`", checkRegexps(&c.podLabelAllow),
		},
		{
			"kubernetes-enable-pod-uid", "", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID", &c.podUID,
			"add the label pod_uid; needs a service account that can list and watch pods", nil,
		},
		{
			"hpc-job-mapping-dir", "", "DCGM_HPC_JOB_MAPPING_DIR", &c.jobDir,
			"`directory` of files named after GPUs (0, 0.7 for a MIG instance, or a UUID) with a job on each line, for the label hpc_job", nil,
		},
		{
			"xid-count-window-size", "x", "DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE", &c.xidWindow,
			"window of DCGM_EXP_XID_ERRORS_COUNT, in `milliseconds`", clamp(&c.xidWindow, 1, day),
		},
		{
			"clock-events-count-window-size", "", "DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE", &c.clockWindow,
			"window of DCGM_EXP_CLOCK_EVENTS_COUNT, in `milliseconds`", clamp(&c.clockWindow, 1, day),
		},
		{
			"web-config-file", "", "DCGM_EXPORTER_WEB_CONFIG_FILE", &c.webConfig,
			"`file` with TLS, basic authentication and headers, in exporter-toolkit's format; changes apply without a restart", nil,
		},
		{
			"web-read-timeout", "", "DCGM_EXPORTER_WEB_READ_TIMEOUT", &c.readTimeout,
			"`time` limit for reading a request", nil,
		},
		{
			"web-write-timeout", "", "DCGM_EXPORTER_WEB_WRITE_TIMEOUT", &c.writeTimeout,
			"`time` limit for writing a response", nil,
		},
		{
			"max-concurrent-scrapes", "", "DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES", &c.maxScrapes,
			"limit of concurrent requests to /metrics and for JSON; further ones wait, and slow readers lose their place; 0 is no limit", flags.Between(&c.maxScrapes, 0, 1_000_000),
		},
		{
			"web-systemd-socket", "", "DCGM_EXPORTER_SYSTEMD_SOCKET", &c.systemdSocket,
			"serve on the socket from systemd (socket activation) instead of --address", nil,
		},
		{
			"health-require-gpus", "", "DCGM_EXPORTER_HEALTH_REQUIRE_GPUS", &c.requireGPUs,
			"/health returns 503 while no GPU can be read", nil,
		},
		{
			"enable-pprof", "", "DCGM_EXPORTER_ENABLE_PPROF", &c.pprof,
			"serve /debug/pprof/", nil,
		},
		{
			"disable-startup-validate", "", "DISABLE_STARTUP_VALIDATE", &c.noValidate,
			"start without a GPU library and wait for it, also with --backend auto", nil,
		},
		{
			"enable-gpu-bind-unbind-watch", "", "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH", &c.bindWatch,
			"has no effect: added and removed GPUs are always detected", nil,
		},
		{
			"gpu-bind-unbind-poll-interval", "", "DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL", &c.bindPoll,
			"has no effect: GPUs are enumerated every 10 s, and 1 s after one is lost", nil,
		},
		{"config-file", "", "DCGM_EXPORTER_CONFIG_FILE", &c.configFile, "`file` with settings and collectors, dcgm-exporter's YAML configuration; flags and variables override it", nil},
		{
			"switch-devices", "s", "DCGM_EXPORTER_OTHER_DEVICES_STR", &c.switchDevices,
			"NvSwitches to `collect` through DCGM: f (all, with their NVLinks), g or g:0,2-3 (switches), i or i:0-6 (links), g+i", checkDevices(&c.switchDevices),
		},
		{
			"cpu-devices", "p", "DCGM_EXPORTER_CPU_DEVICES_STR", &c.cpuDevices,
			"NVIDIA CPUs to `collect` through DCGM: f (all, with their cores), g or g:0 (CPUs), i or i:0-71 (cores), g+i", checkDevices(&c.cpuDevices),
		},
		{"kubernetes-enable-dra", "", "KUBERNETES_ENABLE_DRA", &c.dra, "attribute the devices of resource claims (DRA) too; needs a service account that can list and watch ResourceSlices", nil},
		{
			"enable-exporter-metrics", "", "DCGM_EXPORTER_ENABLE_EXPORTER_METRICS", &c.exporterMetrics,
			"add go_* and process_* metrics of the agent itself, and further gpupilot_* metrics: errors, energy, all reasons of throttling", nil,
		},
		{
			"container-labels", "", "DCGM_EXPORTER_CONTAINER_LABELS", &c.containerLabels,
			"without -k: label devices with the Docker or Podman containers that hold them", nil,
		},
		{"container-runtime-socket", "", "DCGM_CONTAINER_RUNTIME_SOCKET", &c.runtimeSocket, "Docker's `socket` (default: /var/run/docker.sock)", nil},
		{
			"watch-max-keep-age", "", "DCGM_EXPORTER_WATCH_MAX_KEEP_AGE", &c.keepAge,
			"has no effect: only the latest values are kept", nil,
		},
		{
			"watch-max-keep-samples", "", "DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES", &c.keepSamples,
			"has no effect, as --watch-max-keep-age", nil,
		},
		{"fake-gpus", "", "DCGM_EXPORTER_USE_FAKE_GPUS", &c.fakeGPUs, "has no effect: use --backend sim to simulate GPUs", nil},
		{"enable-dcgm-log", "", "DCGM_EXPORTER_ENABLE_DCGM_LOG", &c.dcgmLog, "write DCGM's log to the standard output; has no effect without DCGM", nil},
		{
			"dcgm-log-level", "", "DCGM_EXPORTER_DCGM_LOG_LEVEL", &c.dcgmLogLevel, "`level` of DCGM's log; see --enable-dcgm-log",
			flags.OneOf(&c.dcgmLogLevel, "NONE", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "VERB"),
		},
		{"dump-enabled", "", "DCGM_EXPORTER_DUMP_ENABLED", &c.dump, "has no effect: /api/v1/gpus shows the values", nil},
		{"dump-directory", "", "DCGM_EXPORTER_DUMP_DIRECTORY", &c.dumpDirectory, "has no effect, as --dump-enabled", nil},
		{"dump-retention", "", "DCGM_EXPORTER_DUMP_RETENTION", &c.dumpRetention, "has no effect, as --dump-enabled", nil},
		{"dump-compression", "", "DCGM_EXPORTER_DUMP_COMPRESSION", &c.dumpCompression, "has no effect, as --dump-enabled", nil},
	}
}

// logIgnored logs which of the given flags have no effect.
func (c *compat) logIgnored(backend string, log *slog.Logger) {
	for _, f := range []struct {
		given     bool
		flag, why string
	}{
		{c.bindWatch, "enable-gpu-bind-unbind-watch", "added and removed GPUs are always detected"},
		{c.keepAge != compatDefaults().keepAge || c.keepSamples != 0, "watch-max-keep-age, watch-max-keep-samples", "no samples are kept"},
		{c.fakeGPUs, "fake-gpus", "--backend sim simulates GPUs"},
		{c.dcgmLog && backend != "dcgm", "enable-dcgm-log", "DCGM is not in use"},
		{c.dump, "dump-enabled", "/api/v1/gpus shows the values"},
	} {
		if f.given {
			log.Info("flag is accepted and has no effect", "flag", f.flag, "why", f.why)
		}
	}
}

// allowlist returns the compiled expressions. checkRegexps has removed those
// that do not compile.
func (c *compat) allowlist() []*regexp.Regexp {
	var out []*regexp.Regexp
	for _, s := range c.podLabelAllow {
		out = append(out, regexp.MustCompile(s))
	}
	return out
}

// configMapName splits NAMESPACE:NAME; ok is false for none.
func configMapName(s string) (namespace, name string, ok bool) {
	if s == "none" || s == "" {
		return "", "", false
	}
	namespace, name, _ = strings.Cut(s, ":")
	return namespace, name, true
}

func checkConfigMap(p *string) func() error {
	return func() error {
		namespace, name, ok := configMapName(*p)
		if ok && (namespace == "" || name == "" || strings.ContainsAny(*p, "/?#")) {
			return fmt.Errorf("want NAMESPACE:NAME or none")
		}
		return nil
	}
}

// timeouts returns the time limits of one request.
func (c *compat) timeouts() listen.Timeouts {
	return listen.Timeouts{Read: c.readTimeout, Write: c.writeTimeout}
}
