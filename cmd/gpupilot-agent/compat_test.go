// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpupilot/gpupilot/internal/base/flags"
)

// theirFlags are all of dcgm-exporter 4.8.2's flags and those added until 4.8.4,
// with their aliases, defaults and variables.
const theirFlags = `
collectors f - DCGM_EXPORTER_COLLECTORS
address a :9400 DCGM_EXPORTER_LISTEN
collect-interval c - DCGM_EXPORTER_INTERVAL
kubernetes k false DCGM_EXPORTER_KUBERNETES
use-old-namespace o false DCGM_EXPORTER_USE_OLD_NAMESPACE
cpu-devices p f DCGM_EXPORTER_CPU_DEVICES_STR
configmap-data m none DCGM_EXPORTER_CONFIGMAP_DATA
remote-hostengine-info r - DCGM_REMOTE_HOSTENGINE_INFO
kubernetes-enable-pod-labels - false DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS
kubernetes-enable-pod-uid - false DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID
kubernetes-gpu-id-type - uid DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE
kubernetes-pod-label-allowlist-regex - [] DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX
devices d f DCGM_EXPORTER_DEVICES_STR
no-hostname n false DCGM_EXPORTER_NO_HOSTNAME
switch-devices s f DCGM_EXPORTER_OTHER_DEVICES_STR
fake-gpus - false DCGM_EXPORTER_USE_FAKE_GPUS
web-config-file - - DCGM_EXPORTER_WEB_CONFIG_FILE
xid-count-window-size x 300000 DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE
replace-blanks-in-model-name rbmn false DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME
debug - false DCGM_EXPORTER_DEBUG
clock-events-count-window-size - 300000 DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE
enable-dcgm-log - false DCGM_EXPORTER_ENABLE_DCGM_LOG
dcgm-log-level - NONE DCGM_EXPORTER_DCGM_LOG_LEVEL
log-format - text DCGM_EXPORTER_LOG_FORMAT
pod-resources-kubelet-socket - /var/lib/kubelet/pod-resources/kubelet.sock DCGM_POD_RESOURCES_KUBELET_SOCKET
hpc-job-mapping-dir - - DCGM_HPC_JOB_MAPPING_DIR
nvidia-resource-names - [] NVIDIA_RESOURCE_NAMES
kubernetes-virtual-gpus - false KUBERNETES_VIRTUAL_GPUS
dump-enabled - false DCGM_EXPORTER_DUMP_ENABLED
dump-directory - /tmp/dcgm-exporter-debug DCGM_EXPORTER_DUMP_DIRECTORY
dump-retention - 24 DCGM_EXPORTER_DUMP_RETENTION
dump-compression - true DCGM_EXPORTER_DUMP_COMPRESSION
kubernetes-enable-dra - false KUBERNETES_ENABLE_DRA
disable-startup-validate - false DISABLE_STARTUP_VALIDATE
enable-gpu-bind-unbind-watch - false DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH
gpu-bind-unbind-poll-interval - 1s DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL
enable-pprof - false DCGM_EXPORTER_ENABLE_PPROF
web-systemd-socket - false DCGM_EXPORTER_SYSTEMD_SOCKET
config-file - - DCGM_EXPORTER_CONFIG_FILE
web-read-timeout - 10s DCGM_EXPORTER_WEB_READ_TIMEOUT
web-write-timeout - 30s DCGM_EXPORTER_WEB_WRITE_TIMEOUT
max-concurrent-scrapes - 16 DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES
enable-exporter-metrics - false DCGM_EXPORTER_ENABLE_EXPORTER_METRICS
watch-max-keep-age - 10m0s DCGM_EXPORTER_WATCH_MAX_KEEP_AGE
watch-max-keep-samples - 0 DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES
container-labels - false DCGM_EXPORTER_CONTAINER_LABELS
container-runtime-socket - - DCGM_CONTAINER_RUNTIME_SOCKET
health-require-gpus - false DCGM_EXPORTER_HEALTH_REQUIRE_GPUS
`

func TestAllOfDcgmExportersFlagsAreThere(t *testing.T) {
	c := defaults()
	options := map[string]flags.Option{}
	for _, o := range c.options() {
		options[o.Name] = o
	}
	_, fs, err := parseConfig(nil, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(theirFlags) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		o, ok := options[f[0]]
		if !ok {
			t.Errorf("--%s is not there", f[0])
			continue
		}
		if o.Alias != strings.TrimPrefix(f[1], "-") || o.Env != f[3] {
			t.Errorf("--%s has the alias %q and the variable %s, want %s", o.Name, o.Alias, o.Env, line)
		}
		if def := fs.Lookup(o.Name).DefValue; f[0] != "collect-interval" && def != strings.TrimPrefix(f[2], "-") {
			t.Errorf("--%s has the default %q, want %s", o.Name, def, f[2])
		}
	}
}

func TestAliasOfSeveralLetters(t *testing.T) {
	for _, args := range []string{"-rbmn", "--rbmn", "-rbmn=true", "--replace-blanks-in-model-name", "-replace-blanks-in-model-name"} {
		if c, err := parse(args + " -k"); err != nil || !c.dashedModel || !c.kubernetes {
			t.Errorf("%s: %+v, %v", args, c, err)
		}
	}
	if c, err := parse("-rbmn=false"); err != nil || c.dashedModel {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestBadCompatValues(t *testing.T) {
	for args, want := range map[string]string{
		"--static-labels cluster=a --rename-labels pod":         `"[pod]" of --rename-labels`,
		"--static-labels cluster=a --drop-labels cpu":           `of --drop-labels: label "cpu"`,
		"--static-labels cluster=a --rename-labels pod=cluster": `of --rename-labels: label "pod" cannot be renamed: "cluster" is taken`,
		"--static-labels cluster=a,cluster=b":                   `of --static-labels: static label: "cluster" is given twice`,
		"--rename-labels pod=a,namespace=a":                     `"a" is taken by "namespace"`,
		"--rename-labels pod=a,pod=b":                           `both "a" and "b"`,
		"--static-labels gpu=1":                                 "taken",
		"--static-labels cluster":                               "name=value",
		"--drop-labels UUID":                                    "cannot be dropped",
		"--rename-labels pod=gpu":                               "taken",
		"--rename-labels pod=9":                                 "not a valid label name",
		"--rename-labels gpu=card":                              "cannot be renamed",
		"-m metrics":                                            "NAMESPACE:NAME",
		"--dcgm-log-level LOUD":                                 "NONE, FATAL",
		"-s h":                                                  "f, g, i",
		"--web-read-timeout 10":                                 "duration",
		"--backend sim --web-config-file /no/such/file":         "", // found at the start
	} {
		_, err := parse(args)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if c, err := parse("", "DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", "^app,tier$"); err != nil || len(c.allowlist()) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
}

// What does nothing says so, and everything else starts.
func TestIgnoredFlagsAreLogged(t *testing.T) {
	_, out, _ := start(t, "--backend", "sim", "-c", "100", "--fake-gpus", "--dump-enabled",
		"--enable-dcgm-log", "--enable-gpu-bind-unbind-watch", "--disable-startup-validate")
	for _, want := range []string{
		"flag=fake-gpus", "flag=dump-enabled", "flag=enable-gpu-bind-unbind-watch", "flag=enable-dcgm-log",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, out)
		}
	}
}

func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "counters.csv")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".tmp", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".tmp", file); err != nil {
			t.Fatal(err)
		}
	}
	write("DCGM_FI_DEV_GPU_UTIL,gauge,Utilisation.\nDCGM_FI_PROF_GR_ENGINE_ACTIVE,gauge,Engine.\n")
	url, out, _ := start(t, "--backend", "sim", "-c", "50", "-f", file)
	shows := func(want ...string) func() bool {
		return func() bool {
			_, body := get(t, url+"/metrics")
			for _, w := range want {
				if strings.HasPrefix(w, "!") == strings.Contains(body, strings.TrimPrefix(w, "!")) {
					return false
				}
			}
			return true
		}
	}
	until(t, shows("DCGM_FI_PROF_GR_ENGINE_ACTIVE{", `gpupilot_config_reloads_total{result="success"} 0`))
	// The file's watch: profiling series stay, a field that was not read comes.
	write("DCGM_FI_DEV_FB_USED,gauge,Used.\nDCGM_FI_PROF_GR_ENGINE_ACTIVE,gauge,Engine.\nDCGM_FI_NOPE,gauge,x\n")
	until(t, shows("DCGM_FI_DEV_FB_USED{", "DCGM_FI_PROF_GR_ENGINE_ACTIVE{", "!DCGM_FI_DEV_GPU_UTIL{", "gpupilot_collectors_invalid_lines 1\n",
		`gpupilot_config_reloads_total{result="success"} 1`))
	// A file without a metric is not taken.
	write("# nothing\n")
	until(t, shows("DCGM_FI_DEV_FB_USED{", `gpupilot_config_reloads_total{result="failure"} 1`))
	// SIGHUP reads it again, changed or not.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	until(t, shows("DCGM_FI_DEV_FB_USED{", `gpupilot_config_reloads_total{result="failure"} 2`))
	write("DCGM_FI_DEV_GPU_UTIL,gauge,Utilisation.\n")
	until(t, shows("DCGM_FI_DEV_GPU_UTIL{", "!DCGM_FI_DEV_FB_USED{", `gpupilot_config_reloads_total{result="success"} 2`))
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	until(t, shows("DCGM_FI_DEV_GPU_UTIL{", `gpupilot_config_reloads_total{result="success"} 3`))
	if !strings.Contains(out.String(), "collectors reloaded") || !strings.Contains(out.String(), "the last ones stay in force") {
		t.Errorf("log:\n%s", out)
	}
}

func TestJobsAndModel(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "1"), []byte("4711\n4712\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _, _ := start(t, "--backend", "sim", "--sim-gpus", "2", "-c", "50", "--hpc-job-mapping-dir", dir, "-rbmn", "-o", "-n")
	var body string
	until(t, func() bool { _, body = get(t, url+"/metrics"); return strings.Contains(body, `,hpc_job="4712"} `) })
	if n := strings.Count(body, "\nDCGM_FI_DEV_GPU_UTIL{"); n != 3 || !strings.Contains(body, `modelName="NVIDIA-H200"`) || !strings.Contains(body, `,uuid="GPU-`) {
		t.Errorf("%d series:\n%s", n, body)
	}
}

// Without a token, the rest works, and a series says what does not.
func TestPodLabelsWithoutAToken(t *testing.T) {
	url, out, _ := start(t, "--backend", "sim", "-c", "50", "-k", "--pod-resources-kubelet-socket", filepath.Join(t.TempDir(), "none.sock"),
		"--kubernetes-enable-pod-labels", "--kubernetes-enable-pod-uid", "--service-account", t.TempDir(), "--node-name", "n1")
	until(t, func() bool {
		_, body := get(t, url+"/metrics")
		return strings.Contains(body, "gpupilot_pod_watch_up 0\n") && strings.Contains(body, "DCGM_FI_DEV_GPU_UTIL{")
	})
	if !strings.Contains(out.String(), "no service-account token") {
		t.Errorf("log:\n%s", out)
	}
	if err := run(t.Context(), []string{"--backend", "sim", "-m", "a:b", "--service-account", t.TempDir()}, out); err == nil || !strings.Contains(err.Error(), "--configmap-data") {
		t.Errorf("-m without a token: %v", err)
	}
}

func TestHealthPprofAndPassword(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(file, []byte("basic_auth_users:\n  prom: "+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _, stop := start(t, "--backend", "sim", "-c", "50", "--web-config-file", file, "--enable-pprof")
	if code, _ := get(t, url+"/metrics"); code != http.StatusUnauthorized {
		t.Errorf("without a password: %d", code)
	}
	with := strings.Replace(url, "http://", "http://prom:secret@", 1)
	until(t, func() bool { code, _ := get(t, with+"/metrics"); return code == http.StatusOK })
	if code, _ := get(t, with+"/debug/pprof/cmdline"); code != http.StatusOK {
		t.Errorf("pprof: %d", code)
	}
	stop()
	url, _, _ = start(t, "--backend", "nvml", "--nvml-library", filepath.Join(t.TempDir(), "none.so"), "-c", "100", "--health-require-gpus")
	if code, body := get(t, url+"/health"); code != http.StatusServiceUnavailable || body != "no GPU can be read" {
		t.Errorf("/health: %d %q", code, body)
	}
	if code, _ := get(t, url+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("pprof is there unasked: %d", code)
	}
}
