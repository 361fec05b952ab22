// SPDX-License-Identifier: Apache-2.0

package gpuexporter

import (
	"maps"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
)

// agentContainer is the name of the agent's container.
const agentContainer = "agent"

func daemonSet(e *v1alpha1.GPUExporter, s Settings) *appsv1.DaemonSet {
	labels := maps.Clone(e.Spec.PodLabels)
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, labelsOf(e, AgentName))
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: objectMeta(e, ObjectName(e)),
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: selectorOf(e, AgentName)},
			UpdateStrategy: updateStrategy(e.Spec.UpdateStrategy),
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: e.Spec.PodAnnotations},
				Spec:       podSpec(e, s),
			},
		},
	}
}

// updateStrategy returns the spec's strategy, by default one that replaces at most a
// tenth of the agents at a time.
func updateStrategy(u *v1alpha1.UpdateStrategy) appsv1.DaemonSetUpdateStrategy {
	if u != nil && u.Type == string(appsv1.OnDeleteDaemonSetStrategyType) {
		return appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	tenth, none := intstr.FromString("10%"), intstr.FromInt32(0)
	r := &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &tenth, MaxSurge: &none}
	if u != nil && u.MaxUnavailable != nil {
		r.MaxUnavailable = u.MaxUnavailable
	}
	if u != nil && u.MaxSurge != nil {
		r.MaxSurge = u.MaxSurge
		if u.MaxUnavailable == nil {
			r.MaxUnavailable = &none // the API server refuses both
		}
	}
	return appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: r}
}

func podSpec(e *v1alpha1.GPUExporter, s Settings) corev1.PodSpec {
	no := false
	p := corev1.PodSpec{
		RuntimeClassName:  e.Spec.RuntimeClassName,
		PriorityClassName: orDefault(e.Spec.PriorityClassName, "system-node-critical"),
		NodeSelector:      e.Spec.NodeSelector,
		Tolerations:       tolerations(e.Spec.Tolerations),
		// Always set: the API server would keep the last one otherwise.
		ServiceAccountName:           "default",
		AutomountServiceAccountToken: &no,
		EnableServiceLinks:           &no,
		HostPID:                      e.Spec.ProcessMetrics,
	}
	if asksAPIServer(e, s) {
		yes := true
		p.ServiceAccountName, p.AutomountServiceAccountToken = ServiceAccount, &yes
	}
	for _, secret := range e.Spec.ImagePullSecrets {
		p.ImagePullSecrets = append(p.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}
	p.Affinity = nodeAffinity([]corev1.NodeSelectorTerm{{MatchExpressions: unpaused()}})
	if e.Spec.Discovery != v1alpha1.DiscoveryNone {
		found := terms()
		for i := range found {
			found[i].MatchExpressions = append(found[i].MatchExpressions, unpaused()...)
		}
		p.Affinity = nodeAffinity(found)
	}
	volumes, mounts := volumes(e)
	p.Volumes = volumes
	c := container(e, s)
	c.Name, c.Args, c.VolumeMounts = agentContainer, agentArgs(e, s), mounts
	c.Ports = []corev1.ContainerPort{{Name: metricsPortName, ContainerPort: metricsPort, Protocol: corev1.ProtocolTCP}}
	c.Resources = resources(e.Spec.Resources)
	c.ReadinessProbe, c.LivenessProbe = healthProbe(e, "/readyz", 2, 2), healthProbe(e, "/healthz", 10, 6)
	c.Env = agentEnv(e)
	if e.Spec.Privileged {
		c.SecurityContext.Privileged, c.SecurityContext.AllowPrivilegeEscalation = &e.Spec.Privileged, nil
		c.SecurityContext.Capabilities, c.SecurityContext.SeccompProfile = nil, nil
	}
	p.Containers = []corev1.Container{c}
	return p
}

// unpaused are the requirements that no manager of NVIDIA's GPU Operator has paused what uses
// the GPUs of a node, for a change of MIG instances or of the driver. The managers set these
// labels where they are true, and each label may be false or absent for another reason.
func unpaused() (out []corev1.NodeSelectorRequirement) {
	for _, operand := range []string{"dcgm-exporter", "device-plugin"} {
		out = append(out, corev1.NodeSelectorRequirement{
			Key: "nvidia.com/gpu.deploy." + operand, Operator: corev1.NodeSelectorOpNotIn,
			Values: []string{"paused-for-driver-upgrade", "paused-for-mig-change"},
		})
	}
	return out
}

func nodeAffinity(terms []corev1.NodeSelectorTerm) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
	}}
}

// asksAPIServer reports whether the agent uses the API server and needs an account.
func asksAPIServer(e *v1alpha1.GPUExporter, s Settings) bool {
	k := e.Spec.Kubernetes
	return s.Tokens || attributes(e) && (e.Spec.ProcessMetrics || k != nil && (k.PodLabels || k.PodUID || k.DRA))
}

func attributes(e *v1alpha1.GPUExporter) bool {
	k := e.Spec.Kubernetes
	return k == nil || k.Attribution == nil || *k.Attribution
}

// container returns the common part of the agent's and the probe's container: no
// capabilities, no privilege escalation, and a read-only root file system.
func container(e *v1alpha1.GPUExporter, s Settings) corev1.Container {
	no, yes, root := false, true, int64(0)
	c := corev1.Container{
		Image: orDefault(e.Spec.Image, s.Image), ImagePullPolicy: corev1.PullPolicy(e.Spec.ImagePullPolicy),
		// If the agent does not start, the last lines of its log have the reason.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			RunAsUser:      &root, // the kubelet's socket needs it
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	return c
}

func tolerations(given []v1alpha1.Toleration) []corev1.Toleration {
	if given == nil {
		return []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}
	}
	out := make([]corev1.Toleration, 0, len(given))
	for _, t := range given {
		out = append(out, corev1.Toleration{
			Key: t.Key, Operator: corev1.TolerationOperator(t.Operator), Value: t.Value,
			Effect: corev1.TaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
		})
	}
	return out
}

func resources(given *v1alpha1.ResourceRequirements) corev1.ResourceRequirements {
	if given == nil {
		return corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("48Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("192Mi")},
		}
	}
	return corev1.ResourceRequirements{Requests: resourceList(given.Requests), Limits: resourceList(given.Limits)}
}

func resourceList(in map[string]resource.Quantity) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range in {
		out[corev1.ResourceName(name)] = q
	}
	return out
}

// healthProbe returns an HTTP probe, or a TCP probe if the agent may require a
// password.
func healthProbe(e *v1alpha1.GPUExporter, at string, period, failures int32) *corev1.Probe {
	p := &corev1.Probe{PeriodSeconds: period, TimeoutSeconds: 2, FailureThreshold: failures, SuccessThreshold: 1}
	if e.Spec.Web != nil {
		p.TCPSocket = &corev1.TCPSocketAction{Port: intstr.FromString(metricsPortName)}
	} else {
		p.HTTPGet = &corev1.HTTPGetAction{Path: at, Port: intstr.FromString(metricsPortName), Scheme: corev1.URISchemeHTTP}
	}
	return p
}

// agentArgs returns the agent's flags. Settings in the ConfigMap are not among them, so
// that a change of these does not restart the agents.
func agentArgs(e *v1alpha1.GPUExporter, settings Settings) []string {
	s := &e.Spec
	args := []string{
		"--collectors=" + path.Join(configDir, collectorsKey), "--config-file=" + path.Join(configDir, configKey),
		"--backend=" + orDefault(string(s.Backend), string(v1alpha1.BackendAuto)), "--profile=" + profileOf(e),
		"--disable-startup-validate", // the driver may be installed after the agent starts
	}
	if s.DCGM != nil {
		args = append(args, "--remote-hostengine-info="+s.DCGM.HostEngine)
	}
	if s.Driver != nil {
		args = append(args, "--nvml-library="+path.Join(driverDir, s.Driver.Library))
	}
	if s.Web != nil {
		args = append(args, "--web-config-file="+path.Join(webDir, orDefault(s.Web.Key, "web-config.yml")))
	}
	if attributes(e) {
		args = append(args, "--kubernetes")
		args = append(args, kubernetesArgs(s.Kubernetes)...)
	}
	if s.ProcessMetrics {
		args = append(args, "--process-metrics")
	}
	if settings.Tokens {
		args = append(args, "--auth=token")
	}
	return append(args, s.Args...)
}

func kubernetesArgs(k *v1alpha1.KubernetesOptions) (args []string) {
	if k == nil {
		return nil
	}
	for flag, on := range map[string]bool{
		"--kubernetes-enable-pod-labels": k.PodLabels, "--kubernetes-enable-pod-uid": k.PodUID,
		"--kubernetes-virtual-gpus": k.VirtualGPUs, "--kubernetes-enable-dra": k.DRA,
	} {
		if on {
			args = append(args, flag)
		}
	}
	slices.Sort(args)
	if len(k.PodLabelAllowlist) > 0 {
		args = append(args, "--kubernetes-pod-label-allowlist-regex="+strings.Join(k.PodLabelAllowlist, ","))
	}
	if len(k.ResourceNames) > 0 {
		args = append(args, "--nvidia-resource-names="+strings.Join(k.ResourceNames, ","))
	}
	return args
}

func agentEnv(e *v1alpha1.GPUExporter) []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	env := []corev1.EnvVar{
		field("NODE_NAME", "spec.nodeName"), field("POD_IP", "status.podIP"), field("HOST_IP", "status.hostIP"),
		{Name: "NVIDIA_VISIBLE_DEVICES", Value: "all"}, // for the NVIDIA container runtime
		{Name: "NVIDIA_DRIVER_CAPABILITIES", Value: "utility"},
	}
	for _, v := range e.Spec.Env {
		env = append(env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
	return env
}

// volumes returns the files that the agent reads, all mounted read-only.
func volumes(e *v1alpha1.GPUExporter) (volumes []corev1.Volume, mounts []corev1.VolumeMount) {
	add := func(name, at string, source corev1.VolumeSource) {
		volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: source})
		mounts = append(mounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
	}
	host := func(name, from, at string, kind corev1.HostPathType) {
		add(name, at, corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: from, Type: &kind}})
	}
	mode := int32(0o444)
	add("config", configDir, corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: ObjectName(e)}, DefaultMode: &mode,
	}})
	if attributes(e) {
		kubelet := "/var/lib/kubelet"
		if e.Spec.Kubernetes != nil {
			kubelet = orDefault(e.Spec.Kubernetes.KubeletPath, kubelet)
		}
		host("pod-resources", path.Join(kubelet, "pod-resources"), "/var/lib/kubelet/pod-resources", corev1.HostPathUnset)
	}
	if e.Spec.Driver != nil {
		host("driver", e.Spec.Driver.Root, driverDir, corev1.HostPathUnset)
	}
	if e.Spec.Web != nil {
		add("web", webDir, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: e.Spec.Web.SecretName, DefaultMode: &mode}})
	}
	return volumes, mounts
}

// probeDaemonSet returns the DaemonSet that examines the PCI devices of nodes without a
// label for GPUs. After a node gets its label, the DaemonSet does not select it any more.
func probeDaemonSet(e *v1alpha1.GPUExporter, s Settings) *appsv1.DaemonSet {
	no, nobody := false, int64(65534)
	c := container(e, s)
	c.Name, c.Args = "probe", []string{"--probe"}
	c.SecurityContext.RunAsUser = &nobody
	c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
	for _, v := range e.Spec.Env {
		c.Env = append(c.Env, corev1.EnvVar{Name: v.Name, Value: v.Value})
	}
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
	}
	p := corev1.PodSpec{
		NodeSelector: e.Spec.NodeSelector, Tolerations: tolerations(e.Spec.Tolerations), Affinity: nodeAffinity(unknownTerms()),
		ServiceAccountName: "default", AutomountServiceAccountToken: &no, EnableServiceLinks: &no, Containers: []corev1.Container{c},
	}
	for _, secret := range e.Spec.ImagePullSecrets {
		p.ImagePullSecrets = append(p.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}
	half := intstr.FromString("50%")
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: probeObjectName(e), Labels: labelsOf(e, probeName)},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: selectorOf(e, probeName)},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &half},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labelsOf(e, probeName), Annotations: e.Spec.PodAnnotations}, Spec: p,
			},
		},
	}
}
