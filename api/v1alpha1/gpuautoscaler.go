// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GPUAutoscaler sets the replicas of one workload from metrics of its GPUs, of its
// pods, or of a query.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec.pair) || self.spec.pair.with != self.metadata.name",message="spec.pair.with must name another GPUAutoscaler"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gpa,categories=all
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.scaleTargetRef.name`
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minReplicas`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.maxReplicas`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.servingReplicas`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredReplicas`
// +kubebuilder:printcolumn:name="Signal",type=string,JSONPath=`.status.signal`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Attained",type=string,priority=1,JSONPath=`.status.objectives[0].attained`
// +kubebuilder:printcolumn:name="Decision",type=string,JSONPath=`.status.lastDecision.reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUAutoscaler struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   GPUAutoscalerSpec   `json:"spec"`
	Status GPUAutoscalerStatus `json:"status,omitempty"`
}

// GPUAutoscalerList is a list of GPUAutoscalers.
//
// +kubebuilder:object:root=true
type GPUAutoscalerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUAutoscaler `json:"items"`
}

// GPUAutoscalerSpec is the desired behavior.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must not be greater than maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas > 0 || self.signals.exists(s, (has(s.query) || has(s.preset)) && has(s.activation))",message="minReplicas 0 needs a signal that can be read at zero replicas: a query with an activation"
// +kubebuilder:validation:XValidation:rule="!has(self.idle) || !has(self.idle.to) || self.idle.to <= (has(self.minReplicas) ? self.minReplicas : 1)",message="idle.to must not be greater than minReplicas"
type GPUAutoscalerSpec struct {
	// ScaleTargetRef names the workload, in the same namespace. It must have a
	// scale subresource: a Deployment, a StatefulSet, or a custom resource.
	ScaleTargetRef CrossVersionObjectReference `json:"scaleTargetRef"`

	// MinReplicas is the lower bound.
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`

	// MaxReplicas is the upper bound.
	// +kubebuilder:validation:Minimum=1
	MaxReplicas int32 `json:"maxReplicas"`

	// Signals are the measures of the load. The signal that asks for the most replicas
	// decides.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.name) || self.filter(x, has(x.name) && x.name == s.name).size() == 1)",message="names of signals must be unique"
	Signals []Signal `json:"signals"`

	// Formula is a CEL expression for the wanted replicas, such as
	// "queue.replicas + 0.5 * chat.replicas". Of each signal that has a name it reads
	// NAME.replicas, which the signal asks for, and NAME.value; a - in the name is _. All
	// numbers are floating-point; max and min are functions. Without a formula, the signal
	// that asks for the most replicas decides.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Formula string `json:"formula,omitempty"`

	// Behavior bounds the scaling in each direction, in the shape of the
	// HorizontalPodAutoscaler's.
	// +optional
	Behavior *Behavior `json:"behavior,omitempty"`

	// Startup is the time that a replica takes from creation to serving. It is learned
	// unless it is given.
	// +optional
	Startup *Startup `json:"startup,omitempty"`

	// MissingData is the reaction when no signal has had a value for a minute: Hold keeps
	// the replicas, Max sets maxReplicas, and a number n sets at least n replicas.
	// +kubebuilder:default=Hold
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="(type(self) == int && self >= 0) || (type(self) == string && self in ['Hold', 'Max'])",message="missingData must be Hold, Max or a number of replicas"
	// +optional
	MissingData *intstr.IntOrString `json:"missingData,omitempty"`

	// Actuation is Scale to write the replicas, HPA to have a HorizontalPodAutoscaler write
	// them, which this object owns, or Advise to only report decisions.
	// +kubebuilder:default=Scale
	// +optional
	Actuation Actuation `json:"actuation,omitempty"`

	// Budget bounds the GPUs of the workload.
	// +optional
	Budget *Budget `json:"budget,omitempty"`

	// Drain lets replicas finish their requests before a scale-down removes them.
	// +optional
	Drain *Drain `json:"drain,omitempty"`

	// Pair keeps the replicas in a ratio to those of another GPUAutoscaler.
	// +optional
	Pair *Pair `json:"pair,omitempty"`

	// OnDelete is what becomes of the replicas when this object is deleted: Keep leaves them,
	// Restore sets those from before this object. Restore needs a running controller; without
	// one, the deletion does not wait, and the replicas stay.
	// +kubebuilder:default=Keep
	// +optional
	OnDelete OnDelete `json:"onDelete,omitempty"`

	// Idle removes the replicas of a workload that nobody uses.
	// +optional
	Idle *Idle `json:"idle,omitempty"`

	// Schedules bound the replicas at times that recur, such as at office hours.
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	// +optional
	Schedules []Schedule `json:"schedules,omitempty"`

	// Override holds or bounds the replicas until a time. It ends by itself.
	// +optional
	Override *Override `json:"override,omitempty"`
}

// CrossVersionObjectReference names an object of any kind.
type CrossVersionObjectReference struct {
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^(([a-z0-9.-]+/)?[a-z0-9]+)?$`
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9]*$`
	Kind string `json:"kind"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// Actuation is the effect of a decision.
//
// +kubebuilder:validation:Enum=Scale;HPA;Advise
type Actuation string

// The actuations.
const (
	ActuationScale  Actuation = "Scale"  // write the scale subresource
	ActuationHPA    Actuation = "HPA"    // keep a HorizontalPodAutoscaler that writes it
	ActuationAdvise Actuation = "Advise" // only report decisions
)

// OnDelete is what a deleted GPUAutoscaler leaves.
//
// +kubebuilder:validation:Enum=Keep;Restore
type OnDelete string

// The values of OnDelete.
const (
	OnDeleteKeep    OnDelete = "Keep"    // the replicas as they are
	OnDeleteRestore OnDelete = "Restore" // the replicas from before it
)

// Signal is one measure of the load, with its target: exactly one of gpu, pods, query
// and preset.
//
// +kubebuilder:validation:XValidation:rule="[has(self.gpu), has(self.pods), has(self.query), has(self.preset)].filter(x, x).size() == 1",message="a signal needs exactly one of gpu, pods, query and preset"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || has(self.target)",message="a signal needs a target"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !(has(self.port) || has(self.path) || has(self.scheme) || has(self.tls))",message="port, path, scheme and tls of a signal are for presets; set pods.port, pods.path, pods.scheme and pods.tls instead"
// +kubebuilder:validation:XValidation:rule="has(self.tls) == (has(self.scheme) && self.scheme == 'HTTPS')",message="scheme HTTPS needs tls, and tls needs scheme HTTPS"
// +kubebuilder:validation:XValidation:rule="!has(self.preset) || !has(self.target) || self.target.type == 'AverageValue'",message="a preset's target is per replica: AverageValue"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !has(self.slo)",message="an slo needs a preset, which names the server's latency metrics"
// +kubebuilder:validation:XValidation:rule="!has(self.slo) || !has(self.preset) || self.preset in ['vllm', 'sglang', 'triton']",message="this preset has no time between tokens: set a target instead of an slo"
// +kubebuilder:validation:XValidation:rule="!has(self.activation) || has(self.query) || has(self.preset) && self.preset in ['epp', 'dynamo']",message="activation needs a signal that can be read at zero replicas: a query, or the preset epp or dynamo"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || has(self.preset) && self.preset in ['epp', 'dynamo']",message="selector is for the presets epp and dynamo"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || has(self.preset) && self.preset == 'epp'",message="pool is for the preset epp"
// +kubebuilder:validation:XValidation:rule="has(self.model) == (has(self.preset) && self.preset == 'dynamo')",message="the preset dynamo needs a model, and no other signal has one"
type Signal struct {
	// Name of the signal in decisions, in the status and in metrics; by default the metric,
	// the query or the preset. It is unique within the object.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	Name string `json:"name,omitempty"`
	// GPU is a field of the pods' GPUs.
	// +optional
	GPU *GPUSignal `json:"gpu,omitempty"`
	// Pods is a metric that the pods themselves expose.
	// +optional
	Pods *PodsSignal `json:"pods,omitempty"`
	// Query is a PromQL query for one number.
	// +optional
	Query *QuerySignal `json:"query,omitempty"`
	// Preset is a predefined set of signals of an inference server, read from the pods'
	// own metrics: the requests per replica, running and waiting, and the use of the KV
	// cache. The presets epp and dynamo read the requests from a gateway.
	// +optional
	Preset Preset `json:"preset,omitempty"`
	// Port is the port at which a preset's pods serve their metrics, by number or name;
	// by default the usual port of the server or the gateway.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || (self >= 1 && self <= 65535)",message="a port is a number from 1 to 65535, or the name of a container port"
	// +optional
	Port *intstr.IntOrString `json:"port,omitempty"`
	// Path is the path at which a preset's pods serve their metrics; /metrics by default.
	// It is absolute, without query string and percent-encoding.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/([A-Za-z0-9._~!$&'()*+,;=:@-]+(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="a path must not have a segment that is . or .."
	// +optional
	Path string `json:"path,omitempty"`
	// Scheme is the protocol of a preset's port: HTTP, the default, or HTTPS, which needs tls.
	// +optional
	Scheme Scheme `json:"scheme,omitempty"`
	// TLS is how the certificate of a preset's port is verified, for the scheme HTTPS.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// Pool is the name of the InferencePool of the preset epp; by default the name of the
	// workload.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	Pool string `json:"pool,omitempty"`
	// Model is the label model of the metrics of Dynamo's frontend, for the preset dynamo.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Model string `json:"model,omitempty"`
	// Selector selects the pods of the gateway of the presets epp and dynamo, in the
	// GPUAutoscaler's namespace; by default by the labels that its chart or operator sets.
	// It is not used with a PromQL backend.
	// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) || has(self.matchExpressions)",message="a selector names the labels of the gateway's pods"
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`

	// Target is the value that the signal should have. The target of a preset is
	// optional: it is the number of requests per replica, running and waiting.
	// +optional
	Target *Target `json:"target,omitempty"`

	// Fallback is the reaction while this signal has no value: Hold, the default, allows no
	// scale-down, Ignore lets the other signals decide. After a minute, Max asks for
	// maxReplicas, and a number for as many replicas; both hold until then. MissingData
	// applies when no signal has a value and no fallback asks for replicas. A query that
	// divides 0 by 0 counts as 0: there are no requests. With a fallback, it has no value.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=6
	// +kubebuilder:validation:XValidation:rule="(type(self) == int && self >= 0) || (type(self) == string && self in ['Hold', 'Ignore', 'Max'])",message="fallback must be Hold, Ignore, Max or a number of replicas"
	// +optional
	Fallback *intstr.IntOrString `json:"fallback,omitempty"`

	// SLO is a promise about the latency of requests. With it, the replicas that keep it are
	// learned, and a target counts until then.
	// +optional
	SLO *SLO `json:"slo,omitempty"`

	// Activation is the total value above which the workload is scaled up from zero, and
	// at or below which it may be scaled to zero.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="an activation must not be negative"
	// +optional
	Activation *resource.Quantity `json:"activation,omitempty"`
}

// SLO is a promise: a share of the requests keeps the limits of their latency, one of them
// or both. It needs latency metrics, which vLLM and SGLang expose.
//
// +kubebuilder:validation:XValidation:rule="has(self.interTokenLatency) || has(self.timeToFirstToken)",message="an slo needs interTokenLatency, timeToFirstToken or both"
type SLO struct {
	// Objective is the share of the requests that keeps the limits, from 50% to 99.99%.
	// 99% if it is not set.
	// +kubebuilder:validation:Pattern=`^[5-9][0-9](\.[0-9]{1,2})?%$`
	// +optional
	Objective string `json:"objective,omitempty"`

	// Over is the time over which the objective is judged, in days or hours, such as 28d:
	// from 1h to 28d. 28d if it is not set.
	// +kubebuilder:validation:Pattern=`^[1-9][0-9]{0,2}[dh]$`
	// +optional
	Over string `json:"over,omitempty"`

	// BudgetUse is the part that is to be used of the share of the requests that may miss a
	// limit: from 10% to 100%. 80% if it is not set. What is left is for what nobody plans,
	// such as a failure. A smaller part takes more replicas.
	// +kubebuilder:validation:Pattern=`^([1-9][0-9]|100)%$`
	// +optional
	BudgetUse string `json:"budgetUse,omitempty"`

	// InterTokenLatency is the mean time between a request's tokens, such as 50ms.
	// +kubebuilder:validation:XValidation:rule="(self.endsWith('s') || self.endsWith('m') || self.endsWith('h')) && duration(self) > duration('0s')",message="a latency is a number greater than 0 with its unit, such as 50ms or 2s"
	// +optional
	InterTokenLatency *metav1.Duration `json:"interTokenLatency,omitempty"`

	// TimeToFirstToken is the time from a request to its first token, such as 2s.
	// +kubebuilder:validation:XValidation:rule="(self.endsWith('s') || self.endsWith('m') || self.endsWith('h')) && duration(self) > duration('0s')",message="a latency is a number greater than 0 with its unit, such as 50ms or 2s"
	// +optional
	TimeToFirstToken *metav1.Duration `json:"timeToFirstToken,omitempty"`
}

// Preset is the name of a supported inference server, or of a gateway in front of it.
//
// +kubebuilder:validation:Enum=vllm;triton;tgi;sglang;epp;dynamo
type Preset string

// The presets.
const (
	PresetVLLM   Preset = "vllm"   // vLLM
	PresetTriton Preset = "triton" // NVIDIA Triton Inference Server, with any backend
	PresetTGI    Preset = "tgi"    // Hugging Face Text Generation Inference
	PresetSGLang Preset = "sglang" // SGLang, started with --enable-metrics
	PresetEPP    Preset = "epp"    // the endpoint picker of an InferencePool (llm-d, Gateway API inference extension)
	PresetDynamo Preset = "dynamo" // NVIDIA Dynamo's frontend
)

// GPUSignal is a field of the GPUs that a pod holds.
type GPUSignal struct {
	// Metric is one of Utilization, MemoryUtilization, MemoryUsed, SMActive,
	// SMOccupancy, TensorActive, DRAMActive, Power, or any field id or any
	// profile's metric name, such as DCGM_FI_DEV_GPU_UTIL. The target is in that
	// name's unit.
	// +kubebuilder:validation:MinLength=1
	Metric string `json:"metric"`
}

// PodsSignal is a metric that each pod exposes in the Prometheus text format.
//
// +kubebuilder:validation:XValidation:rule="has(self.tls) == (has(self.scheme) && self.scheme == 'HTTPS')",message="scheme HTTPS needs tls, and tls needs scheme HTTPS"
type PodsSignal struct {
	// Metric is the name of the metric. Several series of that name in one pod are added
	// up.
	// +kubebuilder:validation:MinLength=1
	Metric string `json:"metric"`
	// Port is a container port, by number or name; by default the pod's only port.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || (self >= 1 && self <= 65535)",message="a port is a number from 1 to 65535, or the name of a container port"
	// +optional
	Port *intstr.IntOrString `json:"port,omitempty"`
	// Path is the path at which the pod serves its metrics. It is absolute, without query
	// string and percent-encoding.
	// +kubebuilder:default=/metrics
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/([A-Za-z0-9._~!$&'()*+,;=:@-]+(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="a path must not have a segment that is . or .."
	// +optional
	Path string `json:"path,omitempty"`
	// Scheme is the protocol of the port: HTTP, the default, or HTTPS, which needs tls.
	// +optional
	Scheme Scheme `json:"scheme,omitempty"`
	// TLS is how the certificate of the port is verified, for the scheme HTTPS.
	// +optional
	TLS *TLS `json:"tls,omitempty"`
}

// Scheme is the protocol of a pod's port.
//
// +kubebuilder:validation:Enum=HTTP;HTTPS
type Scheme string

// The schemes.
const (
	SchemeHTTP  Scheme = "HTTP"  // plain HTTP
	SchemeHTTPS Scheme = "HTTPS" // HTTP over TLS
)

// TLS is how the certificate of a pod's server is verified: by ca and serverName, or not at
// all. No certificate and no credential of the controller is sent.
//
// +kubebuilder:validation:XValidation:rule="has(self.insecureSkipVerify) && self.insecureSkipVerify ? !(has(self.ca) || has(self.serverName)) : has(self.ca) && has(self.serverName)",message="tls needs ca and serverName, or insecureSkipVerify: true alone"
type TLS struct {
	// CA has the certificates of the authorities that sign the server's certificate, in PEM.
	// A Secret or a ConfigMap cannot be named: the controller reads none.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=8192
	// +optional
	CA string `json:"ca,omitempty"`
	// ServerName is a name that the certificate has, such as chat.llm.svc. The controller
	// connects to the pod's IP address, which certificates seldom have.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// InsecureSkipVerify accepts every certificate, as a kubelet's probe does: whoever has the
	// pod's address can answer.
	// +optional
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// QuerySignal is a PromQL query.
type QuerySignal struct {
	// PromQL must return one number, for the workload as a whole.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`\S`
	PromQL string `json:"promql"`
}

// TargetType is the unit that a target's value applies to: a replica or the workload.
//
// +kubebuilder:validation:Enum=AverageValue;Value
type TargetType string

// The target types.
const (
	AverageValue TargetType = "AverageValue" // per serving replica
	Value        TargetType = "Value"        // for the workload as a whole
)

// Target is the value that a signal should have.
type Target struct {
	// +kubebuilder:default=AverageValue
	// +optional
	Type TargetType `json:"type,omitempty"`
	// Value is the target, greater than 0.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : !self.startsWith('-') && !(self in ['0', '0.0', '0m'])",message="a target must be greater than 0"
	Value resource.Quantity `json:"value"`
}

// Behavior bounds the scaling in each direction.
//
// +kubebuilder:validation:XValidation:rule="!has(self.scaleUp) || !has(self.scaleUp.toZeroSeconds)",message="toZeroSeconds is for scaleDown"
type Behavior struct {
	// +optional
	ScaleUp *ScalingRules `json:"scaleUp,omitempty"`
	// +optional
	ScaleDown *ScalingRules `json:"scaleDown,omitempty"`
}

// ScalingRules bound one direction. Without policies there is no rate limit. It is not
// needed against repeated scale-ups, because starting replicas count as capacity.
type ScalingRules struct {
	// StabilizationWindowSeconds is how long all decisions must agree on a change. The
	// default for scaling up is 0. The default for scaling down is the start-up time of a
	// replica, at least 300, with steps of at most 20 % of the replicas. With 0 for scaling
	// down, every reading takes effect at once, including noise.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +optional
	StabilizationWindowSeconds *int32 `json:"stabilizationWindowSeconds,omitempty"`
	// SelectPolicy selects one of several policies by its change: Max (the default), Min,
	// or Disabled for no scaling in this direction.
	// +kubebuilder:validation:Enum=Max;Min;Disabled
	// +optional
	SelectPolicy *string `json:"selectPolicy,omitempty"`
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Policies []ScalingPolicy `json:"policies,omitempty"`
	// Tolerance is the relative deviation from the target that changes nothing; 0.1 by
	// default, but 0 upward for a share such as SMActive.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="a tolerance must not be negative"
	// +optional
	Tolerance *resource.Quantity `json:"tolerance,omitempty"`
	// ToZeroSeconds is how long no signal must have been above its activation before the last
	// replica is removed. It takes the place of the stabilization window in that step. For
	// scaleDown only.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	// +optional
	ToZeroSeconds *int32 `json:"toZeroSeconds,omitempty"`
}

// ScalingPolicy bounds a change within a period.
type ScalingPolicy struct {
	// +kubebuilder:validation:Enum=Pods;Percent
	Type string `json:"type"`
	// +kubebuilder:validation:Minimum=1
	Value int32 `json:"value"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1800
	PeriodSeconds int32 `json:"periodSeconds"`
}

// Startup is the time that a replica takes to serve.
type Startup struct {
	// ExpectedSeconds is the time from a pod's creation to its readiness.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ExpectedSeconds *int32 `json:"expectedSeconds,omitempty"`
}

// Budget bounds the resources of the workload.
type Budget struct {
	// MaxGPUs is the maximum number of GPU devices of all replicas together. A MIG
	// instance, a replica of a shared GPU and a device of a resource claim count as one
	// each.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxGPUs *int32 `json:"maxGPUs,omitempty"`
}
