// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package exporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/policies"
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
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: model.Name, OwnerReferences: model.OwnerReferences}, Spec: *model.Spec.DeepCopy()}
		change(ds, &ds.Spec.Template.Spec, &ds.Spec.Template.Spec.Containers[0])
		err := account.Create(t.Context(), ds, client.DryRunAll)
		if apierrors.IsAlreadyExists(err) {
			err = nil // it was allowed
		}
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
	mount := func(name, at string, source corev1.VolumeSource) func(ds, spec, box) {
		return func(_ ds, p spec, c box) {
			p.Volumes = append(p.Volumes, corev1.Volume{Name: name, VolumeSource: source})
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
		}
	}
	none, mode := corev1.HostPathUnset, int32(0o444)
	host := func(path string) corev1.VolumeSource {
		return corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &none}}
	}
	secret := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: &mode}}
	}
	args := func(args ...string) func(ds, spec, box) {
		return func(_ ds, _ spec, c box) { c.Args = append(c.Args, args...) }
	}
	env := func(name, value string) func(ds, spec, box) {
		return func(_ ds, _ spec, c box) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) }
	}
	image := func(image string) func(ds, spec, box) { return func(_ ds, _ spec, c box) { c.Image = image } }
	f(true, "an agent", func(ds, spec, box) {})
	f(true, "the GPU Operator's driver", mount("driver", "/driver-root", host("/run/nvidia/driver")))
	f(true, "the driver's library", args("--nvml-library=/driver-root/usr/lib64/libnvidia-ml.so.1"))
	f(true, "a host engine", args("--remote-hostengine-info=$(HOST_IP):5555"))
	f(true, "the agents' Secret", mount("web", "/etc/gpupilot-web", secret("gpupilot-agent-web")))
	f(true, "a digest", image("ghcr.io/gpupilot/gpupilot-agent:v1@sha256:"+strings.Repeat("0", 64)))

	f(false, "the node's files", mount("driver", "/driver-root", host("/")))
	f(false, "the kubelet's files", mount("driver", "/driver-root", host("/var/lib/kubelet")))
	f(false, "a tenant's emptyDir", mount("driver", "/driver-root", host("/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/pod-resources")))
	f(false, "the controller's key", mount("web", "/etc/gpupilot-web", secret("gpupilot-controller-tls")))
	f(false, "the agents' Secret as a driver", mount("web", "/driver-root", secret("gpupilot-agent-web")))
	f(false, "the ConfigMap as a driver", func(_ ds, _ spec, c box) { c.VolumeMounts[0].MountPath = "/driver-root" })
	f(false, "an emptyDir", mount("driver", "/driver-root", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
	f(false, "a writable mount", func(_ ds, _ spec, c box) { c.VolumeMounts[0].ReadOnly = false })
	f(false, "a library by its flag", args("--nvml-library=/etc/gpupilot/evil.so"))
	f(false, "a library by two arguments", args("--nvml-library", "/etc/gpupilot/evil.so"))
	f(false, "a library by one dash", args("-nvml-library=/etc/gpupilot/evil.so"))
	f(false, "a library above the driver", args("--nvml-library=/driver-root/../etc/gpupilot/evil.so"))
	f(false, "a library that Kubernetes completes", func(d ds, p spec, c box) {
		env("GPUPILOT_SIM_MODEL", "library=/etc/gpupilot/evil.so")(d, p, c)
		args("--nvml-$(GPUPILOT_SIM_MODEL)")(d, p, c)
	})
	f(false, "a path that Kubernetes completes", args("--nvml-library=/driver-root/$(GPUPILOT_SIM_MODEL)"))
	f(false, "DCGM's library", args("--dcgm-library=/driver-root/evil.so"))
	f(false, "the end of flags", args("--", "x"))
	f(false, "a library by a variable", env("GPUPILOT_NVML_LIBRARY", "/etc/gpupilot/evil.so"))
	f(false, "a library of the loader", env("LD_PRELOAD", "/etc/gpupilot/evil.so"))
	f(false, "a variable from a Secret", func(_ ds, _ spec, c box) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "GPUPILOT_SIM_MODEL", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "gpupilot-controller-tls"}, Key: "tls.key",
		}}})
	})
	f(false, "all variables from a Secret", func(_ ds, _ spec, c box) {
		c.EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}
	})
	f(false, "another image", image("evil.example/x"))
	f(false, "another project of the registry", image("ghcr.io/gpupilot/another:v1"))
	f(false, "a longer name of a repository", image("ghcr.io/gpupilot/gpupilot-agent-evil:v1"))
	f(false, "a project below a repository", image("ghcr.io/gpupilot/gpupilot-agent/evil:v1"))
	f(false, "a command", func(_ ds, _ spec, c box) { c.Command = []string{"/bin/sh"} })
	f(false, "a command of a probe", func(_ ds, _ spec, c box) {
		c.LivenessProbe.ProbeHandler = corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh"}}}
	})
	f(false, "a probe of another host", func(_ ds, _ spec, c box) { c.LivenessProbe.HTTPGet.Host = "192.0.2.1" })
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
	f(false, "another uid beside the host's processes", func(_ ds, p spec, c box) {
		uid := int64(1000)
		p.HostPID, c.SecurityContext.RunAsUser = true, &uid
	})
	f(false, "no seccomp", func(_ ds, _ spec, c box) {
		c.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}
	})
	f(false, "no AppArmor", func(_ ds, p spec, _ box) {
		p.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}}
	})
	f(false, "a super-privileged label of SELinux", func(_ ds, _ spec, c box) { c.SecurityContext.SELinuxOptions = &corev1.SELinuxOptions{Type: "spc_t"} })
	f(false, "the host's network", func(_ ds, p spec, c box) { p.HostNetwork = true; c.Ports[0].HostPort = c.Ports[0].ContainerPort })
	f(false, "a port of the host", func(_ ds, _ spec, c box) { c.Ports[0].HostPort = 80 })
	f(false, "another account", func(_ ds, p spec, _ box) { p.ServiceAccountName = "admin" })
	f(false, "the default account's token", func(_ ds, p spec, _ box) { p.AutomountServiceAccountToken = &yes })
	f(false, "a tenant's GPUs", func(_ ds, _ spec, c box) { c.Resources.Limits["nvidia.com/gpu"] = resource.MustParse("1") })
	f(false, "a sidecar by an annotation", func(d ds, _ spec, _ box) {
		d.Spec.Template.Annotations["sidecar.istio.io/proxyImage"] = "evil.example/x"
	})
	f(false, "a cloud's role by an annotation", func(d ds, _ spec, _ box) { d.Spec.Template.Annotations["iam.amazonaws.com/role"] = "admin" })
	f(false, "a cloud's identity by a label", func(d ds, _ spec, _ box) { d.Spec.Template.Labels["azure.workload.identity/use"] = "true" })
	f(false, "another name", func(d ds, _ spec, _ box) { d.Name = "evil" })
	f(false, "another exporter's name", func(d ds, _ spec, _ box) { d.Name = "gpupilot-agent-other" })
	f(false, "no owner", func(d ds, _ spec, _ box) { d.OwnerReferences = nil })
	f(false, "another namespace", func(d ds, _ spec, _ box) { d.Namespace = "default" })
	objects(t, account, model.OwnerReferences)
	t.Run("every field", func(t *testing.T) { everyField(t, account, &model) })
}

// everyField sets each field of the objects of a GPUExporter, found by reflection. Nothing changes but what is on the list.
// The API server looks at an object before the policies do, and drops fields whose feature is off; test/stack asks the
// policies alone.
func everyField(t *testing.T, account client.Client, model *appsv1.DaemonSet) {
	key := client.ObjectKeyFromObject(model)
	no := false
	service, config := &corev1.Service{}, &corev1.ConfigMap{}
	shared := &corev1.ServiceAccount{
		ObjectMeta:                   metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent", OwnerReferences: model.OwnerReferences},
		AutomountServiceAccountToken: &no,
	}
	if err := errors.Join(rig.Client.Get(t.Context(), key, service), rig.Client.Get(t.Context(), key, config), rig.Client.Create(t.Context(), shared)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), shared) })
	for _, o := range []client.Object{model, service, config, shared} {
		tried, refused, invalid, dropped := 0, 0, 0, 0
		plain := func(o client.Object) client.Object {
			o.SetManagedFields(nil)
			o.SetResourceVersion("")
			o.SetGeneration(0)
			delete(o.GetAnnotations(), appsv1.DeprecatedTemplateGeneration) // it counts templates as they are sent
			if ds, ok := o.(*appsv1.DaemonSet); ok {
				ds.Status = appsv1.DaemonSetStatus{}
			}
			return o
		}
		was, _ := plain(o).DeepCopyObject().(client.Object)
		policies.Changes(o, func(change string) {
			// What is removed stays in a merge. The agents' account belongs to all GPUExporters.
			if strings.HasSuffix(change, " removed") || policies.Chosen(change) != "" || strings.Contains(change, ".gpupilot.dev/") || o == shared && strings.HasPrefix(change, "metadata.ownerReferences[].") {
				return
			}
			tried++
			body, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			is, _ := was.DeepCopyObject().(client.Object)
			switch err := account.Patch(t.Context(), is, client.RawPatch(types.MergePatchType, body), client.DryRunAll); {
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
				refused++
			case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
				invalid++ // from whomever
			case err == nil && equality.Semantic.DeepEqual(was, plain(is)):
				dropped++
			default:
				t.Errorf("%T %s: %s answers %v", o, o.GetName(), change, err)
			}
		})
		t.Logf("%T: %d changes, %d refused by the policies, %d by the API server itself, which drops %d", o, tried, refused, invalid, dropped)
	}
}

// objects checks what else the account may write.
func objects(t *testing.T, account client.Client, owners []metav1.OwnerReference) {
	t.Helper()
	f := func(allowed bool, what string, o client.Object) {
		t.Helper()
		err := account.Create(t.Context(), o, client.DryRunAll)
		if apierrors.IsAlreadyExists(err) {
			err = nil // it was allowed
		}
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: allowed %v, answered %v", what, allowed, err)
		}
	}
	at := func(name string, owners []metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: stack.Namespace, Name: name, OwnerReferences: owners}
	}
	f(true, "a ConfigMap of an exporter", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-model", owners)})
	f(false, "another ConfigMap", &corev1.ConfigMap{ObjectMeta: at("x", owners)})
	f(false, "a ConfigMap without an owner", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-model", nil)})
	f(false, "a ConfigMap with a library", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-model", owners), BinaryData: map[string][]byte{"x.so": {0xff}}})
	f(false, "a ConfigMap with another file", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-model", owners), Data: map[string]string{"evil.so": "x"}})
	f(false, "a ConfigMap with other settings", &corev1.ConfigMap{ObjectMeta: at("gpupilot-agent-model", owners), Data: map[string]string{"agent.yaml": "version: 1\nnvml-library: /x\n"}})
	expose := func(change func(*corev1.ServiceSpec)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: at("gpupilot-agent-model", owners), Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app.kubernetes.io/name": "gpupilot-agent", "gpupilot.dev/exporter": "model"},
			Ports: []corev1.ServicePort{{Name: "metrics", Port: 9400, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("metrics")}},
		}}
		change(&s.Spec)
		return s
	}
	f(true, "the Service of an exporter", expose(func(*corev1.ServiceSpec) {}))
	f(false, "addresses of others", expose(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.1"} }))
	f(false, "a load balancer", expose(func(s *corev1.ServiceSpec) { s.Type, s.ClusterIP = corev1.ServiceTypeLoadBalancer, "" }))
	f(false, "a port of the nodes", expose(func(s *corev1.ServiceSpec) { s.Type, s.ClusterIP = corev1.ServiceTypeNodePort, "" }))
	f(false, "another name of DNS", expose(func(s *corev1.ServiceSpec) {
		*s = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "evil.example"}
	}))
	f(false, "pods of others", expose(func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "x"} }))
	role := at("gpupilot-agent", owners)
	role.Annotations = map[string]string{"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/admin"}
	f(false, "the agents' account with a cloud's role", &corev1.ServiceAccount{ObjectMeta: role})
	f(false, "the agents' account with Secrets", &corev1.ServiceAccount{ObjectMeta: at("gpupilot-agent", owners), Secrets: []corev1.ObjectReference{{Name: "x"}}})
	f(true, "the agents' account", &corev1.ServiceAccount{ObjectMeta: at("gpupilot-agent", owners)})
	f(false, "another account", &corev1.ServiceAccount{ObjectMeta: at("admin", owners)})
	f(false, "a Deployment", &appsv1.Deployment{ObjectMeta: at("gpupilot-agent-model", owners)})
	f(false, "a pod", &corev1.Pod{ObjectMeta: at("gpupilot-agent-model", owners)})
	f(false, "a Secret", &corev1.Secret{ObjectMeta: at("gpupilot-agent-model", owners)})
	f(false, "a GPUExporter", &v1alpha1.GPUExporter{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
}

// What GPUExporters may have passes the policies, with their lists as they are shipped.
func TestConfigurationsPassThePolicies(t *testing.T) {
	for _, kind := range []string{"ServiceMonitor", "PodMonitor", "PrometheusRule"} {
		if err := rig.InstallKind(t.Context(), schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: kind}); err != nil {
			t.Fatal(err)
		}
	}
	web := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent-web"}, StringData: map[string]string{"web-config.yml": ""}}
	if err := rig.Client.Create(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), web) })
	yes, class, third := true, "nvidia", intstr.FromString("30%")
	monitor := &v1alpha1.MonitorSpec{
		Labels: map[string]string{"release": "x"}, Interval: "15s", ScrapeTimeout: "10s", HonorLabels: &yes,
		MetricRelabelings: []runtime.RawExtension{{Raw: []byte(`{"action":"drop","sourceLabels":["__name__"],"regex":"X.*"}`)}},
		Endpoint: &runtime.RawExtension{Raw: []byte(`{"tlsConfig":{"ca":{"secret":{"name":"gpupilot-agent-web","key":"ca.crt"}}},
			"basicAuth":{"username":{"name":"gpupilot-agent-web","key":"u"},"password":{"name":"gpupilot-agent-web","key":"p"}},
			"relabelings":[{"sourceLabels":["__meta_kubernetes_pod_node_name"],"targetLabel":"node"}]}`)},
	}
	for name, change := range map[string]func(*v1alpha1.GPUExporterSpec){
		"every": func(s *v1alpha1.GPUExporterSpec) {
			s.ImagePullPolicy, s.ImagePullSecrets = "Never", []v1alpha1.LocalObjectReference{{Name: "registry"}}
			s.Discovery, s.Backend, s.DCGM = v1alpha1.DiscoveryProbe, v1alpha1.BackendDCGM, &v1alpha1.DCGMSource{HostEngine: "$(HOST_IP):5555"}
			s.Tolerations = []v1alpha1.Toleration{{Key: "a", Operator: "Equal", Value: "b", Effect: "NoSchedule"}, {Operator: "Exists"}}
			s.Driver = &v1alpha1.HostDriver{Root: "/run/nvidia/driver", Library: "usr/lib64/libnvidia-ml.so.1"}
			s.RuntimeClassName, s.PriorityClassName, s.Profile = &class, "system-cluster-critical", "4.9"
			s.Kubernetes = &v1alpha1.KubernetesOptions{PodLabels: true, PodLabelAllowlist: []string{"^a$"}, PodUID: true, VirtualGPUs: true, DRA: true, ResourceNames: []string{"a.b/c"}}
			s.Web, s.Monitoring = &v1alpha1.WebConfig{SecretName: web.Name}, &v1alpha1.Monitoring{ServiceMonitor: monitor, PrometheusRule: &v1alpha1.RuleSpec{Labels: monitor.Labels}}
			s.Resources = &v1alpha1.ResourceRequirements{Limits: map[string]resource.Quantity{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}
			s.UpdateStrategy = &v1alpha1.UpdateStrategy{MaxSurge: &third}
			s.PodAnnotations["prometheus.io/scrape"] = "true"
		},
		"processes": func(s *v1alpha1.GPUExporterSpec) {
			s.ProcessMetrics, s.Discovery, s.UpdateStrategy = true, v1alpha1.DiscoveryNone, &v1alpha1.UpdateStrategy{Type: "OnDelete"}
			s.Tolerations, s.Monitoring = []v1alpha1.Toleration{}, &v1alpha1.Monitoring{PodMonitor: monitor}
		},
	} {
		create(t, name, func(s *v1alpha1.GPUExporterSpec) {
			s.NodeSelector = map[string]string{"kubernetes.io/hostname": "none"}
			change(s)
		})
		monitors := map[string][]string{"every": {"ServiceMonitor", "PrometheusRule"}, "processes": {"PodMonitor"}}[name]
		for _, kind := range monitors {
			u := &unstructured.Unstructured{}
			u.SetAPIVersion("monitoring.coreos.com/v1")
			u.SetKind(kind)
			stack.Eventually(t, func() error {
				return rig.Client.Get(t.Context(), client.ObjectKey{Namespace: stack.Namespace, Name: "gpupilot-agent-" + name}, u)
			})
		}
		wantCondition(t, name, "ObjectsApplied", "Applied", metav1.ConditionTrue)
		// And again, with fields of others.
		ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "gpupilot-agent-" + name}}
		drift := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/hold"]},"spec":{"minReadySeconds":3,"template":{"metadata":{"labels":{"team":"a"}},"spec":{"priorityClassName":"x","dnsPolicy":"Default"}}}}`))
		if err := rig.Client.Patch(t.Context(), ds, drift); err != nil {
			t.Fatal(err)
		}
		stack.Eventually(t, func() error {
			err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(ds), ds)
			if p := ds.Spec.Template.Spec.PriorityClassName; err != nil || p == "x" {
				return fmt.Errorf("the priority class is %s, %w", p, err)
			}
			return nil
		})
		if ds.Spec.MinReadySeconds != 3 || ds.Spec.Template.Spec.DNSPolicy != corev1.DNSDefault || ds.Spec.Template.Labels["team"] != "a" {
			t.Errorf("fields of others are gone: %+v", ds.Spec)
		}
		if err := rig.Client.Patch(t.Context(), ds, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil {
			t.Fatal(err)
		}
	}
}
