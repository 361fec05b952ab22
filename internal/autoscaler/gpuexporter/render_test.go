// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the goldens")

func newExporter(spec v1alpha1.GPUExporterSpec) *v1alpha1.GPUExporter {
	return &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "1234", Generation: 3}, Spec: spec}
}

func inputs(installed bool) Inputs {
	return Inputs{
		Settings:   Settings{Namespace: "gpupilot-system", Image: "ghcr.io/gpupilot/gpupilot-agent:v0.1.0"},
		Collectors: "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\n",
		Installed:  func(string) bool { return installed },
	}
}

// everything sets every field.
func everything() v1alpha1.GPUExporterSpec {
	yes, runtimeClass := true, "nvidia"
	one, two := intstr.FromInt32(1), intstr.FromString("20%")
	seconds := int64(30)
	return v1alpha1.GPUExporterSpec{
		Image: "registry.example/agent@sha256:" + strings.Repeat("0123456789abcdef", 4), ImagePullPolicy: "Always",
		ImagePullSecrets: []v1alpha1.LocalObjectReference{{Name: "pull"}},
		Discovery:        v1alpha1.DiscoveryProbe, NodeSelector: map[string]string{"pool": "a100"},
		Tolerations: []v1alpha1.Toleration{{Key: "dedicated", Operator: "Equal", Value: "gpu", Effect: "NoExecute", TolerationSeconds: &seconds}, {Operator: "Exists"}},
		Backend:     v1alpha1.BackendAuto, DCGM: &v1alpha1.DCGMSource{HostEngine: "$(HOST_IP):5555"},
		Driver:           &v1alpha1.HostDriver{Root: "/run/nvidia/driver", Library: "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"},
		RuntimeClassName: &runtimeClass,
		Interval:         &metav1.Duration{Duration: 250 * time.Millisecond}, Profile: "4.9",
		Kubernetes: &v1alpha1.KubernetesOptions{
			Attribution: &yes, PodLabels: true, PodLabelAllowlist: []string{"^app$", "^team"}, PodUID: true, VirtualGPUs: true, DRA: true,
			ResourceNames: []string{"example.com/gpu"}, KubeletPath: "/data/kubelet",
		},
		ProcessMetrics: true,
		Web:            &v1alpha1.WebConfig{SecretName: "web"},
		Monitoring: &v1alpha1.Monitoring{
			ServiceMonitor: &v1alpha1.MonitorSpec{
				Labels: map[string]string{"release": "kube-prometheus-stack"}, Interval: "15s", ScrapeTimeout: "10s",
				MetricRelabelings: []runtime.RawExtension{{Raw: []byte(`{"action":"drop","sourceLabels":["__name__"],"regex":"DCGM_FI_DEV_VGPU.*"}`)}},
				Endpoint:          &runtime.RawExtension{Raw: []byte(`{"tlsConfig":{"insecureSkipVerify":true}}`)},
			},
			PrometheusRule: &v1alpha1.RuleSpec{Labels: map[string]string{"release": "kube-prometheus-stack"}},
		},
		Resources:         &v1alpha1.ResourceRequirements{Requests: map[string]resource.Quantity{"cpu": resource.MustParse("50m")}},
		PriorityClassName: "gpu-critical", UpdateStrategy: &v1alpha1.UpdateStrategy{MaxUnavailable: &one, MaxSurge: &two},
		Args: []string{"--debug"}, Env: []v1alpha1.EnvVar{{Name: "GODEBUG", Value: "x=1"}},
		PodLabels: map[string]string{"team": "platform"}, PodAnnotations: map[string]string{"example.com/a": "b"},
	}
}

func TestRender(t *testing.T) {
	f := func(name string, spec v1alpha1.GPUExporterSpec, in Inputs) {
		t.Helper()
		objects, err := Render(newExporter(spec), in)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for _, o := range objects {
			b, err := yaml.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			out.WriteString("---\n")
			out.Write(b)
		}
		file := filepath.Join("testdata", name+".yaml")
		if *update {
			if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), out.String()); d != "" {
			t.Errorf("%s (go test ./internal/autoscaler/gpuexporter -run TestRender -update writes it):\n%s", file, d)
		}
	}
	f("defaults", v1alpha1.GPUExporterSpec{}, inputs(false))
	f("everything", everything(), inputs(true))
	tokens := inputs(true)
	tokens.Settings.Tokens = true
	f("tokens", v1alpha1.GPUExporterSpec{Monitoring: &v1alpha1.Monitoring{ServiceMonitor: &v1alpha1.MonitorSpec{}}}, tokens)
	no := false
	f("elsewhere", v1alpha1.GPUExporterSpec{
		Discovery: v1alpha1.DiscoveryNone, Privileged: true, Kubernetes: &v1alpha1.KubernetesOptions{Attribution: &no},
		UpdateStrategy: &v1alpha1.UpdateStrategy{Type: "OnDelete"}, Tolerations: []v1alpha1.Toleration{},
		Monitoring: &v1alpha1.Monitoring{PodMonitor: &v1alpha1.MonitorSpec{HonorLabels: &no}},
	}, inputs(true))
}

// Credentials of the endpoint replace Prometheus's token, which a PodMonitor cannot have.
func TestMonitorsOfAgentsWithTokens(t *testing.T) {
	f := func(kind, endpoint, want string) {
		t.Helper()
		m := &v1alpha1.MonitorSpec{}
		if endpoint != "" {
			m.Endpoint = &runtime.RawExtension{Raw: []byte(endpoint)}
		}
		in := inputs(true)
		in.Settings.Tokens = true
		spec, field := v1alpha1.GPUExporterSpec{Monitoring: &v1alpha1.Monitoring{ServiceMonitor: m}}, "endpoints"
		if kind == "PodMonitor" {
			spec, field = v1alpha1.GPUExporterSpec{Monitoring: &v1alpha1.Monitoring{PodMonitor: m}}, "podMetricsEndpoints"
		}
		objects, err := Render(newExporter(spec), in)
		if err != nil {
			t.Fatal(err)
		}
		last := objects[len(objects)-1]
		endpoints, _, _ := unstructured.NestedSlice(last.Object, "spec", field)
		if len(endpoints) != 1 {
			t.Fatalf("%s %s has no endpoint: %v", kind, endpoint, last.Object)
		}
		if got, _ := endpoints[0].(map[string]any)["bearerTokenFile"].(string); got != want {
			t.Errorf("%s %s: token file %q, want %q", kind, endpoint, got, want)
		}
	}
	f("ServiceMonitor", "", prometheusToken)
	f("ServiceMonitor", `{"scheme": "https"}`, prometheusToken)
	f("ServiceMonitor", `{"authorization": {"credentials": {"name": "a", "key": "b"}}}`, "")
	f("ServiceMonitor", `{"bearerTokenFile": "/other"}`, "/other")
	f("PodMonitor", "", "")
}

// Without the Prometheus Operator, the rest is rendered.
func TestMonitorsNeedTheirKinds(t *testing.T) {
	objects, err := Render(newExporter(everything()), inputs(false))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetAPIVersion() == monitoringVersion {
			t.Errorf("%s is rendered, and not installed", o.GetKind())
		}
	}
}

// Nothing that the ConfigMap has changes the pods: a change of it starts no agent again.
func TestCollectorsAndIntervalStartNoAgentAgain(t *testing.T) {
	daemonSetOf := func(spec v1alpha1.GPUExporterSpec, collectors string) any {
		t.Helper()
		in := inputs(false)
		in.Collectors = collectors
		objects, err := Render(newExporter(spec), in)
		if err != nil {
			t.Fatal(err)
		}
		return objects[2].Object
	}
	before := daemonSetOf(v1alpha1.GPUExporterSpec{}, "A, gauge, a\n")
	after := daemonSetOf(v1alpha1.GPUExporterSpec{
		Interval:   &metav1.Duration{Duration: 5 * time.Second},
		Collectors: &v1alpha1.Collectors{CSV: "B, gauge, b\n"},
	}, "B, gauge, b\n")
	if d := cmp.Diff(before, after); d != "" {
		t.Error(d)
	}
}

func TestRenderRefuses(t *testing.T) {
	f := func(spec v1alpha1.GPUExporterSpec) {
		t.Helper()
		if _, err := Render(newExporter(spec), inputs(true)); err == nil {
			t.Errorf("%+v is rendered", spec)
		}
	}
	f(v1alpha1.GPUExporterSpec{Interval: &metav1.Duration{Duration: time.Millisecond}})
	f(v1alpha1.GPUExporterSpec{Interval: &metav1.Duration{Duration: 2 * time.Hour}})
	bad := runtime.RawExtension{Raw: []byte(`[`)}
	f(v1alpha1.GPUExporterSpec{Monitoring: &v1alpha1.Monitoring{ServiceMonitor: &v1alpha1.MonitorSpec{Endpoint: &bad}}})
	f(v1alpha1.GPUExporterSpec{Monitoring: &v1alpha1.Monitoring{PodMonitor: &v1alpha1.MonitorSpec{MetricRelabelings: []runtime.RawExtension{bad}}}})
}

// By default an agent has no right: no capability, no account, nothing to write.
func TestAgentHasNoRights(t *testing.T) {
	pod := podSpec(newExporter(v1alpha1.GPUExporterSpec{}), Settings{})
	c := pod.Containers[0].SecurityContext
	if *pod.AutomountServiceAccountToken || pod.HostPID || pod.HostNetwork || pod.HostIPC || c.Privileged != nil ||
		*c.AllowPrivilegeEscalation || !*c.ReadOnlyRootFilesystem || len(c.Capabilities.Add) > 0 || c.Capabilities.Drop[0] != "ALL" {
		t.Errorf("pod %+v, container %+v", pod, c)
	}
	for _, v := range pod.Volumes {
		if v.HostPath != nil && v.HostPath.Path != "/var/lib/kubelet/pod-resources" {
			t.Errorf("host path %s", v.HostPath.Path)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !m.ReadOnly {
			t.Errorf("%s can be written", m.MountPath)
		}
	}
}

func TestNodes(t *testing.T) {
	node := func(capacity string, labels ...string) *corev1.Node {
		n := &corev1.Node{}
		n.Labels = map[string]string{}
		for i := 0; i < len(labels); i += 2 {
			n.Labels[labels[i]] = labels[i+1]
		}
		if capacity != "" {
			n.Status.Capacity = corev1.ResourceList{corev1.ResourceName(capacity): resource.MustParse("8")}
		}
		return n
	}
	f := func(wantSelected, wantLabel bool, n *corev1.Node) {
		t.Helper()
		if s, l := selected(n), needsLabel(n); s != wantSelected || l != wantLabel {
			t.Errorf("%v %v: selected %v, needs a label %v", n.Labels, n.Status.Capacity, s, l)
		}
	}
	f(false, false, node(""))
	f(false, true, node("nvidia.com/gpu"))
	f(false, true, node("nvidia.com/mig-1g.10gb"))
	f(false, false, node("amd.com/gpu"))
	f(true, false, node("nvidia.com/gpu", "nvidia.com/gpu.present", "true"))
	f(false, true, node("nvidia.com/gpu", "nvidia.com/gpu.present", "false"))
	f(true, false, node("", "feature.node.kubernetes.io/pci-10de.present", "true"))
	f(true, false, node("", "feature.node.kubernetes.io/pci-0302_10de.present", "true"))
	f(true, false, node("", "cloud.google.com/gke-accelerator", "nvidia-l4"))
	f(true, false, node("", "k8s.amazonaws.com/accelerator", "nvidia-tesla-t4"))
	f(true, false, node("", "accelerator", "nvidia"))
	f(true, false, node("", "accelerator", "nvidia-gpu"))
	f(false, false, node("", "accelerator", "amd"))
	f(true, false, node("", "gpupilot.dev/gpu", "true"))
	f(false, false, node("nvidia.com/gpu", "gpupilot.dev/gpu", "false")) // whoever set it wants no agent
	f(false, false, node("nvidia.com/gpu", "nvidia.com/gpu.present", "true", "gpupilot.dev/gpu", "false"))
}

func TestProbesResult(t *testing.T) {
	f := func(want int, ok bool, state, last *corev1.ContainerStateTerminated) {
		t.Helper()
		pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: state}, LastTerminationState: corev1.ContainerState{Terminated: last},
		}}}}
		if n, found := probed(pod); n != want || found != ok {
			t.Errorf("%+v %+v: %d %v", state, last, n, found)
		}
	}
	end := func(code int32, message string) *corev1.ContainerStateTerminated {
		return &corev1.ContainerStateTerminated{ExitCode: code, Message: message}
	}
	f(0, false, nil, nil)
	f(8, true, end(0, "gpus=8\n"), nil)
	f(0, true, nil, end(0, "gpus=0"))
	f(0, false, end(1, "gpus=8"), nil)
	f(0, false, end(0, "gpus=many"), nil)
	f(0, false, end(0, "8"), nil)
	f(0, false, end(0, "gpus=-1"), nil)
}

// No agent runs on a node that a manager of NVIDIA's GPU Operator has paused, with every way of discovery. Labels that are
// absent, true, or false for another reason do not matter.
func TestPausedNodes(t *testing.T) {
	for _, discovery := range []v1alpha1.Discovery{"", v1alpha1.DiscoveryProbe, v1alpha1.DiscoveryNone} {
		e := &v1alpha1.GPUExporter{}
		e.Spec.Discovery = discovery
		p := podSpec(e, Settings{})
		f := func(node labels.Set, want bool) {
			t.Helper()
			node["nvidia.com/gpu.present"] = "true"
			got := false
			for _, term := range p.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				all := true
				for _, x := range term.MatchExpressions {
					r, err := labels.NewRequirement(x.Key, selection.Operator(strings.ToLower(string(x.Operator))), x.Values)
					if x.Operator == corev1.NodeSelectorOpNotIn {
						r, err = labels.NewRequirement(x.Key, selection.NotIn, x.Values)
					}
					if err != nil {
						t.Fatal(err)
					}
					all = all && r.Matches(node)
				}
				got = got || all
			}
			if got != want {
				t.Errorf("discovery %q: an agent on a node with %v: %v", discovery, node, got)
			}
		}
		f(labels.Set{}, true)
		f(labels.Set{"nvidia.com/gpu.deploy.dcgm-exporter": "true", "nvidia.com/gpu.deploy.device-plugin": "true"}, true)
		f(labels.Set{"nvidia.com/gpu.deploy.dcgm-exporter": "false", "nvidia.com/gpu.deploy.device-plugin": "true"}, true)
		f(labels.Set{"nvidia.com/gpu.deploy.dcgm-exporter": "paused-for-mig-change", "nvidia.com/gpu.deploy.device-plugin": "paused-for-mig-change"}, false)
		f(labels.Set{"nvidia.com/gpu.deploy.dcgm-exporter": "false", "nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}, false)
	}
}
