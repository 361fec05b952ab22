// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package exporter

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/stack"
)

// A stolen account of the controller runs no pods of its own.
func TestControllersAccountMayRunAgentsOnly(t *testing.T) {
	cfg, err := rig.AccountREST(stack.ControllerAccount)
	if err != nil {
		t.Fatal(err)
	}
	account, err := client.New(cfg, client.Options{Scheme: rig.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	create(t, "model", func(s *v1alpha1.GPUExporterSpec) {
		s.NodeSelector = map[string]string{"kubernetes.io/hostname": "gpu-node-2"}
	})
	wantCondition(t, "model", "ObjectsApplied", "Applied", metav1.ConditionTrue)
	var model appsv1.DaemonSet
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-agent-model"}, &model); err != nil {
		t.Fatal(err)
	}
	yes := true
	f := func(allowed bool, what string, change func(*appsv1.DaemonSet, *corev1.PodSpec, *corev1.Container)) {
		t.Helper()
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent-copy", OwnerReferences: model.OwnerReferences}, Spec: *model.Spec.DeepCopy()}
		change(ds, &ds.Spec.Template.Spec, &ds.Spec.Template.Spec.Containers[0])
		err := account.Create(t.Context(), ds, client.DryRunAll)
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: allowed %v, answered %v", what, allowed, err)
		}
		if !allowed && err != nil && !strings.Contains(err.Error(), "gpupilot-controller-daemonsets") && !strings.Contains(err.Error(), "cannot create") {
			t.Errorf("%s: refused by %v", what, err)
		}
	}
	type ds = *appsv1.DaemonSet
	type spec = *corev1.PodSpec
	type box = *corev1.Container
	host := func(path string) func(ds, spec, box) {
		return func(_ ds, p spec, _ box) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: "x", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}})
		}
	}
	f(true, "an agent", func(ds, spec, box) {})
	f(true, "the GPU Operator's driver", host("/run/nvidia/driver"))
	f(false, "the node's files", host("/"))
	f(false, "the kubelet's files", host("/var/lib/kubelet"))
	f(false, "another name", func(d ds, _ spec, _ box) { d.Name = "evil" })
	f(false, "no owner", func(d ds, _ spec, _ box) { d.OwnerReferences = nil })
	f(false, "another namespace", func(d ds, _ spec, _ box) { d.Namespace = "default" })
	f(false, "another image", func(_ ds, _ spec, c box) { c.Image = "evil.example/x" })
	f(false, "a command", func(_ ds, _ spec, c box) { c.Command = []string{"/bin/sh"} })
	f(false, "a second container", func(_ ds, p spec, c box) { x := *c; x.Name = "x"; p.Containers = append(p.Containers, x) })
	f(false, "an init container", func(_ ds, p spec, c box) {
		x := *c
		x.Name = "x"
		x.Ports, x.ReadinessProbe, x.LivenessProbe = nil, nil, nil
		p.InitContainers = append(p.InitContainers, x)
	})
	f(false, "privileged", func(_ ds, _ spec, c box) {
		c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = &yes, nil
	})
	f(false, "a capability", func(_ ds, _ spec, c box) { c.SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"} })
	f(false, "no security context", func(_ ds, _ spec, c box) { c.SecurityContext = nil })
	f(false, "the host's network", func(_ ds, p spec, c box) { p.HostNetwork = true; c.Ports[0].HostPort = c.Ports[0].ContainerPort })
	f(false, "another account", func(_ ds, p spec, _ box) { p.ServiceAccountName = "admin" })
	f(false, "a writable mount", func(_ ds, _ spec, c box) { c.VolumeMounts[0].ReadOnly = false })
	f(false, "a library by its flag", func(_ ds, _ spec, c box) { c.Args = append(c.Args, "--nvml-library=/etc/gpupilot/evil.so") })
	f(false, "a library by a variable", func(_ ds, _ spec, c box) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "LD_PRELOAD", Value: "/etc/gpupilot/evil.so"})
	})
	objects(t, account, model.OwnerReferences)
}

// objects checks what else the account may write.
func objects(t *testing.T, account client.Client, owners []metav1.OwnerReference) {
	t.Helper()
	f := func(allowed bool, what string, o client.Object) {
		t.Helper()
		if err := account.Create(t.Context(), o, client.DryRunAll); allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: allowed %v, answered %v", what, allowed, err)
		}
	}
	at := func(name string, owners []metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: stack.Namespace, Name: name, OwnerReferences: owners}
	}
	f(true, "a ConfigMap of an exporter", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-x", owners)})
	f(false, "another ConfigMap", &corev1.ConfigMap{ObjectMeta: at("x", owners)})
	f(false, "a ConfigMap without an owner", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-x", nil)})
	f(false, "a ConfigMap with a library", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-x", owners), BinaryData: map[string][]byte{"x.so": {0xff}}})
	f(true, "the agents' account", &corev1.ServiceAccount{ObjectMeta: at("gpupilot-agent", owners)})
	f(false, "another account", &corev1.ServiceAccount{ObjectMeta: at("admin", owners)})
	f(false, "a Deployment", &appsv1.Deployment{ObjectMeta: at("gpupilot-agent-x", owners)})
	f(false, "a pod", &corev1.Pod{ObjectMeta: at("gpupilot-agent-x", owners)})
	f(false, "a Secret", &corev1.Secret{ObjectMeta: at("gpupilot-agent-x", owners)})
	f(false, "a GPUExporter", &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
}
