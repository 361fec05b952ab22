// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GPUExporter runs gpupilot-agent on the GPU nodes of the cluster. It is cluster-scoped
// because its pods mount host paths (docs/design/0011-gpuexporter.md).
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=gpe
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredAgents`
// +kubebuilder:printcolumn:name="Agents",type=integer,JSONPath=`.status.readyAgents`
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.gpuCount`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="the name of a GPUExporter must be a DNS label of at most 40 characters: its objects are named gpupilot-agent-NAME"
type GPUExporter struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec   GPUExporterSpec   `json:"spec,omitempty"`
	Status GPUExporterStatus `json:"status,omitempty"`
}

// GPUExporterList is a list of GPUExporters.
//
// +kubebuilder:object:root=true
type GPUExporterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUExporter `json:"items"`
}

// GPUExporterSpec is the desired state of the agents. An empty spec runs the agent with
// its defaults on every node that is known to have NVIDIA GPUs.
//
// +kubebuilder:validation:XValidation:rule="!has(self.dcgm) || !has(self.backend) || self.backend in ['auto', 'dcgm']",message="dcgm.hostEngine needs the backend auto or dcgm"
// +kubebuilder:validation:XValidation:rule="!has(self.processMetrics) || !self.processMetrics || !has(self.backend) || self.backend != 'dcgm'",message="processMetrics needs the backend nvml, auto or sim: DCGM does not list processes"
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || !self.podLabels.exists(k, k == 'app.kubernetes.io/name' || k.startsWith('gpupilot.dev/'))",message="podLabels must not contain app.kubernetes.io/name or gpupilot.dev/*: the controller finds the agents by them"
type GPUExporterSpec struct {
	// Image is the agent's image. The default is the controller's --agent-image.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	// +optional
	Image string `json:"image,omitempty"`
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	ImagePullPolicy string `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets name Secrets in the agents' namespace.
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=name
	// +optional
	ImagePullSecrets []LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// Discovery selects the nodes: Labels uses labels and the capacity of nodes, Probe also
	// looks at the PCI devices of nodes without either, None leaves the choice to
	// nodeSelector.
	// +kubebuilder:default=Labels
	// +optional
	Discovery Discovery `json:"discovery,omitempty"`
	// NodeSelector limits the nodes further.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations of the pods. By default they tolerate nvidia.com/gpu and the taints that
	// every DaemonSet tolerates.
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	// +optional
	Tolerations []Toleration `json:"tolerations,omitempty"`

	// Backend is how GPUs are read.
	// +kubebuilder:default=auto
	// +optional
	Backend Backend `json:"backend,omitempty"`
	// DCGM is the source of the backends auto and dcgm.
	// +optional
	DCGM *DCGMSource `json:"dcgm,omitempty"`
	// Driver is where the NVIDIA driver is on the host. It is not needed if the container
	// runtime provides it, as with the runtime class nvidia.
	// +optional
	Driver *HostDriver `json:"driver,omitempty"`
	// RuntimeClassName is the pods' runtime class, such as nvidia.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	RuntimeClassName *string `json:"runtimeClassName,omitempty"`
	// Privileged runs the agent as a privileged container, which reaches the GPUs' device
	// files without the NVIDIA container runtime, as on GKE. Elsewhere it is not needed. The
	// policies of deploy/admission refuse it unless they are changed.
	// +optional
	Privileged bool `json:"privileged,omitempty"`

	// Collectors are the metrics to show. By default they are the profile's list. A change
	// takes effect without a restart.
	// +optional
	Collectors *Collectors `json:"collectors,omitempty"`
	// Interval is the time between two collections, 10ms to 1h in whole milliseconds. A
	// change takes effect without a restart.
	// +kubebuilder:default="1s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('1h')",message="interval must be a duration from 10ms to 1h"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`
	// Profile is the release of dcgm-exporter whose names metrics and labels have.
	// +kubebuilder:default="4.8"
	// +kubebuilder:validation:Enum="4.8";"4.8.2";"4.9";"1.x"
	// +optional
	Profile string `json:"profile,omitempty"`
	// Kubernetes are the options of the attribution of GPUs to pods.
	// +optional
	Kubernetes *KubernetesOptions `json:"kubernetes,omitempty"`
	// ProcessMetrics shows what each pod's processes use of a GPU. The pods then share the
	// host's process namespace.
	// +optional
	ProcessMetrics bool `json:"processMetrics,omitempty"`
	// Web is how the agents serve: TLS and credentials.
	// +optional
	Web *WebConfig `json:"web,omitempty"`
	// Monitoring creates objects of the Prometheus Operator, if its kinds are installed.
	// +optional
	Monitoring *Monitoring `json:"monitoring,omitempty"`

	// Resources of the agent's container. By default it requests 20m CPU and 48Mi of memory,
	// and is limited to 192Mi of memory.
	// +optional
	Resources *ResourceRequirements `json:"resources,omitempty"`
	// PriorityClassName of the pods. The default is system-node-critical.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// UpdateStrategy of the DaemonSet. By default at most 10 % of the agents are replaced at
	// a time.
	// +optional
	UpdateStrategy *UpdateStrategy `json:"updateStrategy,omitempty"`
	// Args are further flags of the agent. They come last, so that they have precedence.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=4096
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`
	// Env are further environment variables of the agent.
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	// +optional
	Env []EnvVar `json:"env,omitempty"`
	// PodLabels are further labels of the pods.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	PodLabels map[string]string `json:"podLabels,omitempty"`
	// PodAnnotations are annotations of the pods.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
}

// Discovery is how GPU nodes are found.
//
// +kubebuilder:validation:Enum=Labels;Probe;None
type Discovery string

// The ways to find GPU nodes.
const (
	DiscoveryLabels Discovery = "Labels" // labels and capacity of nodes
	DiscoveryProbe  Discovery = "Probe"  // and the PCI devices of nodes without either
	DiscoveryNone   Discovery = "None"   // every node that nodeSelector selects
)

// Backend is how GPUs are read.
//
// +kubebuilder:validation:Enum=auto;nvml;dcgm;sim
type Backend string

// The backends.
const (
	BackendAuto Backend = "auto" // NVML, and DCGM for what only DCGM gives
	BackendNVML Backend = "nvml"
	BackendDCGM Backend = "dcgm"
	BackendSim  Backend = "sim" // simulated GPUs
)

// LocalObjectReference names an object in the agents' namespace.
type LocalObjectReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// DCGMSource is a DCGM host engine.
type DCGMSource struct {
	// HostEngine is its address: host:port, tcp://host:port, unix:///path or
	// vsock://cid:port. $(HOST_IP) in it is the address of the agent's node.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^\S+$`
	HostEngine string `json:"hostEngine"`
}

// HostDriver is where the NVIDIA driver is on the host: /run/nvidia/driver with the
// GPU Operator's driver container, /home/kubernetes/bin/nvidia on GKE.
type HostDriver struct {
	// Root is the host path of the driver. It is mounted read-only.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/[A-Za-z0-9][A-Za-z0-9._/-]*$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="root must not have a segment that is . or .."
	Root string `json:"root"`
	// Library is the path of libnvidia-ml.so.1 below root, such as
	// usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1.
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._/-]*$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="library must not have a segment that is . or .."
	Library string `json:"library"`
}

// Collectors is one source of the list of metrics, in the format of dcgm-exporter's
// collectors file: field, type, help.
//
// +kubebuilder:validation:XValidation:rule="has(self.csv) != has(self.configMap)",message="collectors need exactly one of csv and configMap"
type Collectors struct {
	// CSV is the list itself.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	// +optional
	CSV string `json:"csv,omitempty"`
	// ConfigMap is a ConfigMap in the agents' namespace with the list.
	// +optional
	ConfigMap *ConfigMapKey `json:"configMap,omitempty"`
}

// ConfigMapKey is a key of a ConfigMap in the agents' namespace.
type ConfigMapKey struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key is metrics by default, as in dcgm-exporter's ConfigMap.
	// +kubebuilder:default=metrics
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
}

// KubernetesOptions are the options of the attribution of GPUs to pods.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podLabelAllowlist) || (has(self.podLabels) && self.podLabels)",message="podLabelAllowlist needs podLabels: true"
type KubernetesOptions struct {
	// Attribution labels GPUs with the pods that hold them; true by default.
	// +kubebuilder:default=true
	// +optional
	Attribution *bool `json:"attribution,omitempty"`
	// PodLabels adds the labels of pods. The agent then watches the pods of its node.
	// +optional
	PodLabels bool `json:"podLabels,omitempty"`
	// PodLabelAllowlist are regular expressions of labels to add; empty: all.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	// +kubebuilder:validation:items:XValidation:rule="!self.contains(',')",message="an expression must not contain a comma: they are passed to the agent separated by commas"
	// +listType=atomic
	// +optional
	PodLabelAllowlist []string `json:"podLabelAllowlist,omitempty"`
	// PodUID adds the UID of pods.
	// +optional
	PodUID bool `json:"podUID,omitempty"`
	// VirtualGPUs shows the series of a shared GPU once per container that shares it.
	// +optional
	VirtualGPUs bool `json:"virtualGPUs,omitempty"`
	// DRA attributes devices of resource claims.
	// +optional
	DRA bool `json:"dra,omitempty"`
	// ResourceNames are further resources that count as GPUs.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9.-]+/[A-Za-z0-9._-]+$`
	// +listType=atomic
	// +optional
	ResourceNames []string `json:"resourceNames,omitempty"`
	// KubeletPath is the kubelet's directory on the host. It contains pod-resources.
	// +kubebuilder:default=/var/lib/kubelet
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^/[A-Za-z0-9][A-Za-z0-9._/-]*$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="kubeletPath must not have a segment that is . or .."
	// +optional
	KubeletPath string `json:"kubeletPath,omitempty"`
}

// WebConfig is how the agents serve: a Secret with a web configuration in the format of
// Prometheus's exporters, and the files that it names.
type WebConfig struct {
	// SecretName is the name of the Secret in the agents' namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName"`
	// Key is the key of the web configuration in the Secret. Its relative paths are other
	// keys of the Secret.
	// +kubebuilder:default=web-config.yml
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
	// Scheme is https if the configuration has tls_server_config.
	// +kubebuilder:default=https
	// +kubebuilder:validation:Enum=http;https
	// +optional
	Scheme string `json:"scheme,omitempty"`
}

// Monitoring are objects of the Prometheus Operator.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.serviceMonitor) && has(self.podMonitor))",message="set serviceMonitor or podMonitor, not both: every series would be stored twice"
type Monitoring struct {
	// ServiceMonitor creates a ServiceMonitor.
	// +optional
	ServiceMonitor *MonitorSpec `json:"serviceMonitor,omitempty"`
	// PodMonitor creates a PodMonitor.
	// +optional
	PodMonitor *MonitorSpec `json:"podMonitor,omitempty"`
	// PrometheusRule creates a PrometheusRule.
	// +optional
	PrometheusRule *RuleSpec `json:"prometheusRule,omitempty"`
}

// MonitorSpec is a ServiceMonitor or a PodMonitor.
type MonitorSpec struct {
	// Labels by which Prometheus selects it, such as release: kube-prometheus-stack.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Interval of Prometheus's scrapes; empty: Prometheus's own.
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +optional
	Interval string `json:"interval,omitempty"`
	// +kubebuilder:validation:Pattern=`^([0-9]+(ms|s|m|h))+$`
	// +optional
	ScrapeTimeout string `json:"scrapeTimeout,omitempty"`
	// HonorLabels keeps the agent's labels pod, namespace and container, which name the pod
	// that holds the GPU; true by default.
	// +kubebuilder:default=true
	// +optional
	HonorLabels *bool `json:"honorLabels,omitempty"`
	// MetricRelabelings are relabel configurations of samples, as in the Prometheus
	// Operator's API.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +listType=atomic
	// +optional
	MetricRelabelings []runtime.RawExtension `json:"metricRelabelings,omitempty"`
	// Endpoint are further fields of the endpoint, such as tlsConfig and basicAuth, as in the
	// Prometheus Operator's API.
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	Endpoint *runtime.RawExtension `json:"endpoint,omitempty"`
}

// RuleSpec is a PrometheusRule with GPUPilot's alerts for agents.
type RuleSpec struct {
	// Labels by which Prometheus selects it.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
}

// Toleration is a pod's, as in the core API.
//
// +kubebuilder:validation:XValidation:rule="!has(self.operator) || self.operator != 'Exists' || !has(self.value) || size(self.value) == 0",message="a toleration with the operator Exists has no value"
// +kubebuilder:validation:XValidation:rule="(has(self.key) && size(self.key) > 0) || (has(self.operator) && self.operator == 'Exists')",message="a toleration without a key needs the operator Exists"
type Toleration struct {
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Key string `json:"key,omitempty"`
	// +kubebuilder:validation:Enum=Exists;Equal
	// +optional
	Operator string `json:"operator,omitempty"`
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Value string `json:"value,omitempty"`
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	// +optional
	Effect string `json:"effect,omitempty"`
	// +optional
	TolerationSeconds *int64 `json:"tolerationSeconds,omitempty"`
}

// ResourceRequirements are a container's, as in the core API.
type ResourceRequirements struct {
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Requests map[string]resource.Quantity `json:"requests,omitempty"`
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	Limits map[string]resource.Quantity `json:"limits,omitempty"`
}

// EnvVar is an environment variable with a value.
type EnvVar struct {
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Value string `json:"value,omitempty"`
}

// UpdateStrategy is a DaemonSet's.
//
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'OnDelete' || !(has(self.maxUnavailable) || has(self.maxSurge))",message="maxUnavailable and maxSurge need the type RollingUpdate"
type UpdateStrategy struct {
	// +kubebuilder:default=RollingUpdate
	// +kubebuilder:validation:Enum=RollingUpdate;OnDelete
	// +optional
	Type string `json:"type,omitempty"`
	// MaxUnavailable is a number of agents or a percentage.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"`
	// MaxSurge is a number of agents or a percentage.
	// +kubebuilder:validation:XIntOrString
	// +optional
	MaxSurge *intstr.IntOrString `json:"maxSurge,omitempty"`
}

// The types of a GPUExporter's conditions. Ready is the sum of the others.
const (
	// ConditionExporterReady: every agent is ready and reads its GPUs, and nothing else is wrong.
	ConditionExporterReady = "Ready"
	// ConditionObjectsApplied: the objects of the exporter are as its spec wants them.
	ConditionObjectsApplied = "ObjectsApplied"
	// ConditionCollectorsValid: the list of metrics is used. False: the last valid one is.
	ConditionCollectorsValid = "CollectorsValid"
	// ConditionFieldsGiven: no agent lacks a field of its collectors that only DCGM gives. It
	// does not change Ready.
	ConditionFieldsGiven = "FieldsGiven"
	// ConditionNodesFound: at least one node has GPUs.
	ConditionNodesFound = "NodesFound"
)

// GPUExporterStatus is the observed state.
type GPUExporterStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Nodes is the number of nodes that the exporter selects.
	Nodes int32 `json:"nodes"`
	// DesiredAgents and ReadyAgents count the DaemonSet's pods.
	DesiredAgents int32 `json:"desiredAgents"`
	ReadyAgents   int32 `json:"readyAgents"`
	// UpdatedAgents is the number of agents of the current spec.
	UpdatedAgents int32 `json:"updatedAgents"`
	// GPUCount is the number of GPUs that the agents report; a MIG instance is part of its GPU.
	// +optional
	GPUCount int32 `json:"gpuCount,omitempty"`
	// GPUs is the number of GPUs by model.
	// +listType=map
	// +listMapKey=model
	// +optional
	GPUs []GPUModelStatus `json:"gpus,omitempty"`
	// Problems are nodes whose agent does not work, at most 32.
	// +listType=atomic
	// +optional
	Problems []NodeProblem `json:"problems,omitempty"`
	// NodesWithProblems is the number of all such nodes.
	// +optional
	NodesWithProblems int32 `json:"nodesWithProblems,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GPUModelStatus is the number of GPUs of one model.
type GPUModelStatus struct {
	// Model is the marketing name.
	Model string `json:"model"`
	Count int32  `json:"count"`
}

// NodeProblem is why a node's agent does not work.
type NodeProblem struct {
	Node string `json:"node"`
	// Reason is one word: the scheduler's or the kubelet's, such as Unschedulable or
	// ImagePullBackOff, or the controller's, such as DriverNotReady.
	Reason string `json:"reason"`
	// +optional
	Message string `json:"message,omitempty"`
	// Pod is the agent's pod, if there is one.
	// +optional
	Pod string `json:"pod,omitempty"`
}
