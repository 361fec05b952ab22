// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
	"github.com/gpupilot/gpupilot/test/agentrig"
)

// exporterPod is what dcgm-exporter's Helm chart makes of its default values, as far as a program sees it: arguments,
// variables, mounts and the security context.
const exporterPod = `
containers:
- name: exporter
  image: ghcr.io/gpupilot/gpupilot-agent # the one change
  args: ["-f", /etc/dcgm-exporter/default-counters.csv]
  env:
  - {name: DCGM_EXPORTER_KUBERNETES, value: "true"}
  - {name: DCGM_EXPORTER_LISTEN, value: ":9400"}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  ports: [{name: metrics, containerPort: 9400}]
  livenessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 45}
  readinessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 45}
  securityContext: {runAsNonRoot: false, runAsUser: 0, capabilities: {add: [SYS_ADMIN], drop: [ALL]}}
  volumeMounts:
  - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
  - {name: counters, mountPath: /etc/dcgm-exporter/default-counters.csv, subPath: default-counters.csv, readOnly: true}
volumes:
- {name: pod-resources, hostPath: {path: /var/lib/kubelet/pod-resources}}
- {name: counters, configMap: {name: counters, items: [{key: metrics, path: default-counters.csv}]}}
`

// operatorPod is the DaemonSet's pod that NVIDIA's GPU Operator makes for dcgm-exporter, with our image in its
// ClusterPolicy and DCGM's host engine enabled there, as far as a program sees it. The collectors file exists in
// dcgm-exporter's image only.
const operatorPod = `
containers:
- name: exporter
  image: ghcr.io/gpupilot/gpupilot-agent # of the ClusterPolicy
  env:
  - {name: DCGM_EXPORTER_LISTEN, value: ":9400"}
  - {name: DCGM_EXPORTER_KUBERNETES, value: "true"}
  - {name: DCGM_EXPORTER_COLLECTORS, value: /etc/dcgm-exporter/dcp-metrics-included.csv}
  - {name: DCGM_REMOTE_HOSTENGINE_INFO, value: "nvidia-dcgm:5555"}
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  - {name: GPUPILOT_BACKEND, value: nvml} # of the ClusterPolicy; sim in this test
  ports: [{name: metrics, containerPort: 9400}]
  livenessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 45, periodSeconds: 5}
  readinessProbe: {httpGet: {path: /health, port: 9400}, initialDelaySeconds: 45}
  securityContext: {privileged: true}
  volumeMounts:
  - {name: pod-gpu-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
volumes:
- {name: pod-gpu-resources, hostPath: {path: /var/lib/kubelet/pod-resources}}
`

const (
	exporterNode = "gpu-1"
	counters     = "# a comment\nDCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\nDCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).\n"
)

// The agent runs with the arguments, variables and mounts of a pod of NVIDIA's chart, and without any capability.
func TestPodOfNVIDIAsChart(t *testing.T) {
	a := startPod(t, exporterPod)
	shows(t, a, `DCGM_FI_DEV_GPU_UTIL{gpu="0"`, "\nDCGM_FI_DEV_FB_USED{", "!DCGM_FI_DEV_SM_CLOCK",
		`hostname="`+exporterNode+`"`, `container="server",namespace="llm",pod="chat-0"`)
}

// The same with the pod of NVIDIA's GPU Operator. The agent shows its built-in list.
func TestPodOfNVIDIAsOperator(t *testing.T) {
	a := startPod(t, operatorPod)
	shows(t, a, `DCGM_FI_DEV_GPU_UTIL{gpu="0"`, "\nDCGM_FI_DEV_SM_CLOCK{", "\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{",
		`hostname="`+exporterNode+`"`, `container="server",namespace="llm",pod="chat-0"`)
}

// The values of docs/dcgm-exporter.md for a volume with libdcgm: the init container copies the libraries, and the agent gives
// the profiling fields of a GPU before Hopper, which it lacks without them.
func TestVolumeWithLibdcgm(t *testing.T) {
	page, err := os.ReadFile("../../../docs/dcgm-exporter.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\nimage: {repository: ghcr.io/gpupilot/gpupilot-agent, tag: v0.1.0}\narguments: [\"-f\", \"/etc/dcgm-exporter/default-counters.csv\"]   # with")
	_, text, _ = strings.Cut(text, "\n")
	text, _, ok := strings.Cut(text, "```")
	var values struct {
		ExtraEnv       []corev1.EnvVar      `json:"extraEnv"`
		InitContainers []corev1.Container   `json:"initContainers"`
		Mounts         []corev1.VolumeMount `json:"extraVolumeMounts"`
	}
	if err := yaml.Unmarshal([]byte(text), &values); !ok || err != nil || len(values.InitContainers) != 1 || len(values.ExtraEnv) != 1 || len(values.Mounts) != 1 {
		t.Fatalf("docs/dcgm-exporter.md has no such values: %+v, %v", values, err)
	}
	// The folders of NVIDIA's image, of the volume and of the driver.
	dir := t.TempDir()
	image, volume, driver := filepath.Join(dir, "usr/lib/x86_64-linux-gnu"), filepath.Join(dir, "dcgm"), filepath.Join(dir, "nvidia")
	bin, err := filepath.Abs("../../../bin")
	if err != nil {
		t.Fatal(err)
	}
	link := func(folder string, names map[string]string) {
		t.Helper()
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, to := range names {
			if err := os.Symlink(filepath.Join(bin, to), filepath.Join(folder, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link(image, map[string]string{"libdcgm.so.4": "libdcgm-fake.so", "libnvperf_dcgm_host.so": "libdcgm-fake.so"})
	link(driver, map[string]string{"libnvidia-ml.so.1": "libnvidia-ml-fake.so"})
	link(volume, nil)
	paths := strings.NewReplacer("/usr/lib/*-linux-gnu", filepath.Dir(image)+"/*-linux-gnu", "/dcgm", volume, "/usr/local/nvidia/lib64", driver)
	for name, state := range map[string]string{"GPUPILOT_FAKE_NVML": "gpus 1\ngpu * unsupported gpm\n", "GPUPILOT_FAKE_DCGM": "gpus 1\ngpu * gpm_gr 0.5\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(state), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := values.ExtraEnv[0]
	cfg := agentrig.Config{Env: []string{
		env.Name + "=" + paths.Replace(env.Value), "GPUPILOT_FAKE_NVML=" + filepath.Join(dir, "GPUPILOT_FAKE_NVML"), "GPUPILOT_FAKE_DCGM=" + filepath.Join(dir, "GPUPILOT_FAKE_DCGM"),
	}}
	const profiling = "\nDCGM_FI_PROF_GR_ENGINE_ACTIVE{"
	without := start(t, cfg)
	shows(t, without, "DCGM_FI_DEV_GPU_UTIL{", "!"+profiling, `field="DCGM_FI_PROF_GR_ENGINE_ACTIVE"`)
	command := values.InitContainers[0].Command
	run := exec.CommandContext(t.Context(), command[0], command[1], paths.Replace(command[2]))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shows(t, start(t, cfg), "DCGM_FI_DEV_GPU_UTIL{", profiling)
}

// startPod runs the agent as the first container of a pod. It is a process, not a container: paths of mounts are
// replaced by those of files here. Its probes succeed.
func startPod(t *testing.T, manifest string) *agentrig.Agent {
	t.Helper()
	var pod corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(manifest), &pod); err != nil {
		t.Fatal(err)
	}
	container, dir := pod.Containers[0], t.TempDir()
	mounted := mount(t, container, dir)
	kubelet, err := agentrig.StartKubelet(filepath.Join(dir, "kubelet.sock"), []agentrig.Grant{{
		Namespace: "llm", Pod: "chat-0", Container: "server", Resource: "nvidia.com/gpu", DeviceID: sim.UUID(exporterNode, 1),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kubelet.Stop)

	cfg := agentrig.Config{Runner: withoutCapabilities(t)}
	for _, arg := range container.Args {
		cfg.Args = append(cfg.Args, mounted.Replace(arg))
	}
	for _, e := range container.Env {
		if e.ValueFrom != nil {
			e.Value = exporterNode // spec.nodeName, the only reference
		}
		cfg.Env = append(cfg.Env, e.Name+"="+e.Value)
	}
	cfg.Env = append(cfg.Env,
		"GPUPILOT_BACKEND=sim", "GPUPILOT_SIM_GPUS=2", // there is no GPU
		"DCGM_POD_RESOURCES_KUBELET_SOCKET="+mounted.Replace("/var/lib/kubelet/pod-resources/kubelet.sock"))
	a := start(t, cfg)
	for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
		if _, err := a.Get(t.Context(), probe.HTTPGet.Path); err != nil {
			t.Errorf("the probe: %v", err)
		}
	}
	return a
}

// mount makes the files of a container's mounts in dir, and returns what replaces their paths.
func mount(t *testing.T, c corev1.Container, dir string) *strings.Replacer {
	t.Helper()
	var pairs []string
	for _, m := range c.VolumeMounts {
		to := dir
		if m.SubPath != "" {
			to = filepath.Join(dir, m.SubPath)
			if err := os.WriteFile(to, []byte(counters), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pairs = append(pairs, m.MountPath, to)
	}
	return strings.NewReplacer(pairs...)
}

// withoutCapabilities runs a program as our user with no capability, and no way to get one, where this user is root.
func withoutCapabilities(t *testing.T) []string {
	t.Helper()
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		t.Logf("with this user's capabilities: uid %d, setpriv: %v", os.Geteuid(), err)
		return nil
	}
	return []string{setpriv, "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"}
}
