// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package exporter tests GPUExporters on a real control plane: the controller's objects,
// and real agents in the pods that come of them.
package exporter

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// rig is the stack that the tests of this package share: three nodes of two GPUs.
var rig *stack.Stack

func TestMain(m *testing.M) {
	stack.Main(m, stack.Config{Nodes: 3, GPUs: 2, NoAgents: true}, func(s *stack.Stack) error { rig = s; return nil })
}

// create creates a GPUExporter whose pods the simulated nodes run as they are.
func create(t *testing.T, name string, change func(*v1alpha1.GPUExporterSpec)) *v1alpha1.GPUExporter {
	t.Helper()
	e := &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUExporterSpec{
		Image: stack.AgentImage, Backend: v1alpha1.BackendSim,
		PodAnnotations: map[string]string{simnode.ExecAnnotation: simnode.ExecImage},
		// The pods share this machine's network.
		Args: []string{"--address=$(POD_IP):9400", "--sim-state=$(SIM_STATE)", "--sim-gpus=2"},
		Env:  []v1alpha1.EnvVar{{Name: "DCGM_POD_RESOURCES_KUBELET_SOCKET", Value: "$(POD_RESOURCES_SOCKET)"}},
	}}
	if change != nil {
		change(&e.Spec)
	}
	if err := rig.Client.Create(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rig.Client.Delete(context.Background(), e); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	})
	return e
}

// wantCondition waits for a condition and returns the object.
func wantCondition(t *testing.T, name, kind, reason string, status metav1.ConditionStatus) *v1alpha1.GPUExporter {
	t.Helper()
	e := &v1alpha1.GPUExporter{}
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKey{Name: name}, e); err != nil {
			return err
		}
		c := meta.FindStatusCondition(e.Status.Conditions, kind)
		if c == nil || c.Reason != reason || c.Status != status || c.ObservedGeneration != e.Generation {
			return fmt.Errorf("%s of generation %d, want %s %s: %+v", kind, e.Generation, status, reason, e.Status)
		}
		return nil
	})
	return e
}

func agentsOf(t *testing.T, name string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	if err := rig.Client.List(t.Context(), &pods, client.InNamespace(stack.Namespace), client.MatchingLabels{"gpupilot.dev/exporter": name, "app.kubernetes.io/name": "gpupilot-agent"}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods.Items
}

// identities are the UIDs and restarts of pods.
func identities(pods []corev1.Pod) (out []string) {
	for i := range pods {
		restarts := int32(0)
		for _, s := range pods[i].Status.ContainerStatuses {
			restarts += s.RestartCount
		}
		out = append(out, fmt.Sprintf("%s %d", pods[i].UID, restarts))
	}
	return out
}

func metrics(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+pod.Status.PodIP+":9400/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// wantMetrics waits until every agent's page has a text, and lacks another.
func wantMetrics(t *testing.T, pods []corev1.Pod, has, lacks string) {
	t.Helper()
	stack.Eventually(t, func() error {
		for i := range pods {
			if page := metrics(t, &pods[i]); !strings.Contains(page, has) || lacks != "" && strings.Contains(page, lacks) {
				return fmt.Errorf("the page of %s has no %q, or has %q", pods[i].Name, has, lacks)
			}
		}
		return nil
	})
}

func TestAgentsRunAndFollowTheSpec(t *testing.T) {
	create(t, "follows", nil)
	e := wantCondition(t, "follows", "Ready", "AgentsReady", metav1.ConditionTrue)
	if s := e.Status; s.Nodes != 3 || s.DesiredAgents != 3 || s.ReadyAgents != 3 || s.NodesWithProblems != 0 {
		t.Errorf("status %+v", s)
	}
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			return err
		}
		if s := e.Status; len(s.GPUs) != 1 || s.GPUs[0].Count != 6 || s.GPUs[0].Model != "NVIDIA H200" || s.GPUCount != 6 {
			return fmt.Errorf("GPUs %+v", s.GPUs)
		}
		return nil
	})
	pods := agentsOf(t, "follows")
	wantMetrics(t, pods, "DCGM_FI_DEV_GPU_UTIL{", "")
	before := identities(pods)

	// Collectors and interval change, and no agent starts again.
	change := func(patch string) {
		t.Helper()
		if err := rig.Client.Patch(t.Context(), e, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	change(`{"spec":{"interval":"250ms","collectors":{"csv":"DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"}}}`)
	wantMetrics(t, pods, "DCGM_FI_DEV_GPU_TEMP{", "DCGM_FI_DEV_GPU_UTIL{")
	wantMetrics(t, pods, "gpupilot_collection_interval_seconds 0.25", "")

	// A broken list keeps the last good one.
	change(`{"spec":{"collectors":{"csv":"DCGM_FI_DEV_POWER_USAGE, gauge, Power.\nDCGM_FI_DEV_NOPE, gauge, x\n"}}}`)
	e = wantCondition(t, "follows", "CollectorsValid", "InvalidCollectors", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(e.Status.Conditions, "CollectorsValid"); !strings.Contains(c.Message, "line 2") || !strings.Contains(c.Message, "last valid") {
		t.Errorf("message %q", c.Message)
	}
	wantMetrics(t, pods, "DCGM_FI_DEV_GPU_TEMP{", "DCGM_FI_DEV_POWER_USAGE{")
	var m corev1.ConfigMap
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-agent-follows"}, &m); err != nil || !strings.Contains(m.Data["collectors.csv"], "GPU_TEMP") {
		t.Errorf("ConfigMap %v, %v", m.Data, err)
	}

	// From a ConfigMap.
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "my-metrics"}, Data: map[string]string{"metrics": "DCGM_FI_DEV_POWER_USAGE, gauge, Power.\n"}}
	if err := rig.Client.Create(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), list) })
	change(`{"spec":{"collectors":{"csv":null,"configMap":{"name":"my-metrics"}}}}`)
	wantCondition(t, "follows", "CollectorsValid", "Valid", metav1.ConditionTrue)
	wantMetrics(t, pods, "DCGM_FI_DEV_POWER_USAGE{", "DCGM_FI_DEV_GPU_TEMP{")

	if after := identities(agentsOf(t, "follows")); !slices.Equal(before, after) {
		t.Errorf("agents were %v, are %v: one started again", before, after)
	}
}

// Fields of others stay, and ours are corrected.
func TestForeignFieldStaysAndDriftIsCorrected(t *testing.T) {
	create(t, "drift", func(s *v1alpha1.GPUExporterSpec) {
		s.NodeSelector = map[string]string{"kubernetes.io/hostname": "gpu-node-0"}
	})
	wantCondition(t, "drift", "ObjectsApplied", "Applied", metav1.ConditionTrue)
	key := client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-agent-drift"}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	patch := `{"metadata":{"labels":{"example.com/team":"a"}},"spec":{"template":{"metadata":{"annotations":{"example.com/restarted":"now"}},"spec":{"priorityClassName":"system-cluster-critical"}}}}`
	if err := rig.Client.Patch(t.Context(), ds, client.RawPatch(types.MergePatchType, []byte(patch)), client.FieldOwner("kubectl-edit")); err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	if err := rig.Client.Delete(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), key, ds); err != nil {
			return err
		}
		if p := ds.Spec.Template.Spec.PriorityClassName; p != "system-node-critical" {
			return fmt.Errorf("the priority class is %s", p)
		}
		return rig.Client.Get(t.Context(), key, service)
	})
	if ds.Labels["example.com/team"] != "a" || ds.Spec.Template.Annotations["example.com/restarted"] != "now" {
		t.Errorf("a foreign field is gone: labels %v, annotations %v", ds.Labels, ds.Spec.Template.Annotations)
	}
}

// An object of somebody else with our name stays as it is.
func TestNothingIsAdopted(t *testing.T) {
	theirs := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent-taken"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := rig.Client.Create(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), theirs) })
	version := theirs.ResourceVersion
	e := create(t, "taken", func(s *v1alpha1.GPUExporterSpec) {
		s.NodeSelector = map[string]string{"kubernetes.io/hostname": "gpu-node-0"}
	})
	wantCondition(t, "taken", "ObjectsApplied", "NameTaken", metav1.ConditionFalse)
	if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(theirs), theirs); err != nil || theirs.ResourceVersion != version {
		t.Errorf("the Service was touched: %+v, %v", theirs.ObjectMeta, err)
	}
	stack.Eventually(t, func() error {
		var events corev1.EventList
		if err := rig.Client.List(t.Context(), &events, client.MatchingFields{"involvedObject.name": e.Name}); err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(x corev1.Event) bool { return x.Reason == "NameTaken" && x.Type == "Warning" }) {
			return fmt.Errorf("%d events, none says NameTaken", len(events.Items))
		}
		return nil
	})
}

// A node's problem is in the status, with its reason.
func TestProblemsAreReported(t *testing.T) {
	problem := func(name, reason, message string) {
		t.Helper()
		e := &v1alpha1.GPUExporter{}
		stack.Eventually(t, func() error {
			if err := rig.Client.Get(t.Context(), client.ObjectKey{Name: name}, e); err != nil {
				return err
			}
			if p := e.Status.Problems; len(p) != 1 || p[0].Reason != reason || !strings.Contains(p[0].Message, message) {
				return fmt.Errorf("problems %+v, want %s with %q", p, reason, message)
			}
			return nil
		})
	}
	one := map[string]string{"kubernetes.io/hostname": "gpu-node-1"}
	create(t, "no-driver", func(s *v1alpha1.GPUExporterSpec) {
		s.NodeSelector, s.Backend = one, v1alpha1.BackendNVML
		s.Args = []string{"--address=$(POD_IP):9400", "--nvml-library=/driver-root/libnvidia-ml.so.1"}
	})
	none := "none"
	create(t, "no-class", func(s *v1alpha1.GPUExporterSpec) { s.NodeSelector, s.RuntimeClassName = one, &none })
	create(t, "no-image", func(s *v1alpha1.GPUExporterSpec) { s.NodeSelector, s.Image = one, "registry.example/agent:v1" })
	problem("no-driver", "DriverNotReady", "libnvidia-ml")
	problem("no-class", "PodNotCreated", `RuntimeClass "none" not found`)
	// The policy has a list of images.
	e := wantCondition(t, "no-image", "ObjectsApplied", "Forbidden", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(e.Status.Conditions, "ObjectsApplied"); !strings.Contains(c.Message, "gpupilot-controller-daemonsets") {
		t.Errorf("message %q", c.Message)
	}
}

// A node that only its capacity tells of is labelled, and one that nothing tells of is
// probed. The label goes with the last GPUExporter.
func TestNodesWithoutLabels(t *testing.T) {
	sys := t.TempDir()
	for _, d := range []struct{ node, class string }{{"gpu-node-1", "0x030200"}, {"gpu-node-2", "0x020000"}} {
		device := filepath.Join(sys, d.node, "bus", "pci", "devices", "0000:1b:00.0")
		if err := os.MkdirAll(device, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{"vendor": "0x10de\n", "class": d.class + "\n"} {
			if err := os.WriteFile(filepath.Join(device, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	patch := func(node, subresource, body string) {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		var err error
		if p := client.RawPatch(types.MergePatchType, []byte(body)); subresource == "" {
			err = rig.Client.Patch(context.Background(), n, p)
		} else {
			err = rig.Client.Status().Patch(context.Background(), n, p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		node := fmt.Sprintf("gpu-node-%d", i)
		patch(node, "", `{"metadata":{"labels":{"nvidia.com/gpu.present":null}}}`)
		t.Cleanup(func() {
			patch(node, "", `{"metadata":{"labels":{"nvidia.com/gpu.present":"true","gpupilot.dev/gpu":null}}}`)
			patch(node, "status", `{"status":{"capacity":{"nvidia.com/gpu":"2"},"allocatable":{"nvidia.com/gpu":"2"}}}`)
		})
		if i > 0 {
			patch(node, "status", `{"status":{"capacity":{"nvidia.com/gpu":null},"allocatable":{"nvidia.com/gpu":null}}}`)
		}
	}
	e := create(t, "probed", func(s *v1alpha1.GPUExporterSpec) {
		s.Discovery = v1alpha1.DiscoveryProbe
		s.Env = append(s.Env, v1alpha1.EnvVar{Name: "GPUPILOT_HOST_SYS", Value: filepath.Join(sys, "$(NODE_NAME)")}, v1alpha1.EnvVar{Name: "GPUPILOT_PROBE_RESULT", Value: "$(TERMINATION_LOG)"})
	})
	labels := func(want map[string]string) {
		t.Helper()
		stack.Eventually(t, func() error {
			var nodes corev1.NodeList
			if err := rig.Client.List(t.Context(), &nodes); err != nil {
				return err
			}
			for _, n := range nodes.Items {
				if n.Labels["gpupilot.dev/gpu"] != want[n.Name] {
					return fmt.Errorf("%s has the label %q, want %q", n.Name, n.Labels["gpupilot.dev/gpu"], want[n.Name])
				}
			}
			return nil
		})
	}
	labels(map[string]string{"gpu-node-0": "true", "gpu-node-1": "true", "gpu-node-2": "false"})
	stack.Eventually(t, func() error { // the probes have left, and two agents run
		var pods corev1.PodList
		if err := rig.Client.List(t.Context(), &pods, client.InNamespace(stack.Namespace), client.MatchingLabels{"app.kubernetes.io/name": "gpupilot-probe"}); err != nil || len(pods.Items) > 0 {
			return fmt.Errorf("%d pods of the probe, %w", len(pods.Items), err)
		}
		if n := len(agentsOf(t, "probed")); n != 2 {
			return fmt.Errorf("%d agents", n)
		}
		return nil
	})
	if err := rig.Client.Delete(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	labels(map[string]string{})
}

// What the API server refuses, with a message that names the field.
func TestCRDRefuses(t *testing.T) {
	f := func(message, spec string) {
		t.Helper()
		e := &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}
		body := `{"apiVersion":"gpupilot.dev/v1alpha1","kind":"GPUExporter","metadata":{"name":"refused"},"spec":` + spec + `}`
		err := rig.Client.Patch(t.Context(), e, client.RawPatch(types.ApplyPatchType, []byte(body)), client.FieldOwner("test"), client.DryRunAll)
		switch {
		case message == "" && err != nil:
			t.Errorf("%s: %v", spec, err)
		case message != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), message)):
			t.Errorf("%s: %v, want %q", spec, err, message)
		}
	}
	f("", `{}`)
	f("", `{"interval":"1m30s"}`)
	f("interval must be a duration from 10ms to 1h", `{"interval":"1ms"}`)
	f("interval must be a duration from 10ms to 1h", `{"interval":"2h"}`)
	f("spec.interval", `{"interval":"soon"}`)
	f("spec.backend", `{"backend":"rocm"}`)
	f("spec.profile", `{"profile":"5"}`)
	f("dcgm.hostEngine needs the backend auto or dcgm", `{"backend":"nvml","dcgm":{"hostEngine":"x:5555"}}`)
	f("processMetrics needs the backend", `{"backend":"dcgm","processMetrics":true}`)
	f("exactly one of csv and configMap", `{"collectors":{}}`)
	f("exactly one of csv and configMap", `{"collectors":{"csv":"x","configMap":{"name":"y"}}}`)
	f("podLabelAllowlist needs podLabels", `{"kubernetes":{"podLabelAllowlist":["x"]}}`)
	f("must not contain a comma", `{"kubernetes":{"podLabels":true,"podLabelAllowlist":["x{1,2}"]}}`)
	f("podLabels must not contain", `{"podLabels":{"app.kubernetes.io/name":"x"}}`)
	f("segment that is . or ..", `{"driver":{"root":"/run/../etc","library":"x"}}`)
	f("segment that is . or ..", `{"driver":{"root":"/run","library":"a/../b"}}`)
	f("spec.driver.root", `{"driver":{"root":"/","library":"x"}}`)
	f("not both", `{"monitoring":{"serviceMonitor":{},"podMonitor":{}}}`)
	f("needs the operator Exists", `{"tolerations":[{"operator":"Equal"}]}`)
	f("has no value", `{"tolerations":[{"key":"a","operator":"Exists","value":"b"}]}`)
	f("need the type RollingUpdate", `{"updateStrategy":{"type":"OnDelete","maxUnavailable":1}}`)
	long := &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "a.b"}}
	if err := rig.Client.Create(t.Context(), long, client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "DNS label") {
		t.Errorf("the name a.b: %v", err)
	}
}

// It is the last test: the garbage collector takes up to 30 s to learn of a new kind.
func TestDeletionRemovesAll(t *testing.T) {
	e := create(t, "removed", func(s *v1alpha1.GPUExporterSpec) {
		s.NodeSelector = map[string]string{"kubernetes.io/hostname": "gpu-node-0"}
	})
	wantCondition(t, "removed", "Ready", "AgentsReady", metav1.ConditionTrue)
	if err := rig.Client.Delete(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	of := client.MatchingLabels{"gpupilot.dev/exporter": e.Name}
	stack.Eventually(t, func() error {
		for _, list := range []client.ObjectList{&appsv1.DaemonSetList{}, &corev1.ServiceList{}, &corev1.ConfigMapList{}, &corev1.PodList{}} {
			if err := rig.Client.List(t.Context(), list, of); err != nil {
				return err
			}
			if n := meta.LenList(list); n > 0 {
				return fmt.Errorf("%d objects are left: %T", n, list)
			}
		}
		return nil
	})
}
