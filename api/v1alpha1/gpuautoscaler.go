// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GPUAutoscaler sets the replicas of one workload from what its GPUs, its pods
// or a query say.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=gpa,categories=all
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.scaleTargetRef.name`
// +kubebuilder:printcolumn:name="Min",type=integer,JSONPath=`.spec.minReplicas`
// +kubebuilder:printcolumn:name="Max",type=integer,JSONPath=`.spec.maxReplicas`
// +kubebuilder:printcolumn:name="Serving",type=integer,JSONPath=`.status.servingReplicas`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredReplicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.lastDecision.reason`
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

// GPUAutoscalerSpec is what the user asks for.
//
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must not be greater than maxReplicas"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || self.minReplicas > 0 || self.signals.exists(s, has(s.query) && has(s.activation))",message="minReplicas 0 needs a signal that can be read at zero replicas: a query with an activation"
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

	// Signals are what to look at; the one that wants the most replicas wins.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Signals []Signal `json:"signals"`

	// Behavior bounds the scaling in each direction, in the shape of the
	// HorizontalPodAutoscaler's.
	// +optional
	Behavior *Behavior `json:"behavior,omitempty"`

	// Startup tells how long a replica takes from creation to serving; it is
	// learned where it is not given.
	// +optional
	Startup *Startup `json:"startup,omitempty"`

	// MissingData says what to do when no signal has been readable for a while:
	// Hold, Max, or a number n that the replicas do not stay below.
	// +kubebuilder:default=Hold
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="(type(self) == int && self >= 0) || (type(self) == string && self in ['Hold', 'Max'])",message="missingData must be Hold, Max or a number of replicas"
	// +optional
	MissingData *intstr.IntOrString `json:"missingData,omitempty"`

	// Actuation says how the decision takes effect.
	// +kubebuilder:default=Scale
	// +optional
	Actuation Actuation `json:"actuation,omitempty"`

	// Budget bounds what the workload may take.
	// +optional
	Budget *Budget `json:"budget,omitempty"`
}

// CrossVersionObjectReference names an object of any kind.
type CrossVersionObjectReference struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// Actuation says how a decision takes effect.
//
// +kubebuilder:validation:Enum=Scale;Advise
type Actuation string

// The actuations.
const (
	ActuationScale  Actuation = "Scale"  // write the scale subresource
	ActuationAdvise Actuation = "Advise" // only say what would be done
)

// Signal is one thing to look at, with its target: exactly one of gpu, pods,
// query and preset.
//
// +kubebuilder:validation:XValidation:rule="[has(self.gpu), has(self.pods), has(self.query), has(self.preset)].filter(x, x).size() == 1",message="a signal needs exactly one of gpu, pods, query and preset"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || has(self.target)",message="a signal needs a target"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !(has(self.port) || has(self.path))",message="port and path beside a signal are a preset's; those of pods stand in pods"
// +kubebuilder:validation:XValidation:rule="!has(self.preset) || !has(self.target) || self.target.type == 'AverageValue'",message="a preset's target is per replica: AverageValue"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !has(self.slo)",message="an slo needs a preset, which knows where a server tells its latency"
// +kubebuilder:validation:XValidation:rule="!has(self.slo) || !has(self.preset) || self.preset != 'tgi'",message="tgi does not tell the times between tokens: give a target instead of an slo"
// +kubebuilder:validation:XValidation:rule="!has(self.activation) || has(self.query)",message="activation needs a signal that can be read at zero replicas: a query"
type Signal struct {
	// GPU is a field of the pods' GPUs.
	// +optional
	GPU *GPUSignal `json:"gpu,omitempty"`
	// Pods is a metric that the pods themselves expose.
	// +optional
	Pods *PodsSignal `json:"pods,omitempty"`
	// Query is a PromQL query for one number.
	// +optional
	Query *QuerySignal `json:"query,omitempty"`
	// Preset is a ready-made set of signals of an inference server, read from the
	// pods' own metrics: the requests that a replica has, running and waiting, and
	// its KV cache.
	// +optional
	Preset Preset `json:"preset,omitempty"`
	// Port is where a preset's pods serve their metrics, by number or name; the
	// server's own by default.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || (self >= 1 && self <= 65535)",message="a port is a number from 1 to 65535, or the name of a container port"
	// +optional
	Port *intstr.IntOrString `json:"port,omitempty"`
	// Path is where a preset's pods serve their metrics; /metrics by default. It
	// is absolute, without a query string and percent-encoding.
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/([A-Za-z0-9._~!$&'()*+,;=:@-]+(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="a path must not have a segment that is . or .."
	// +optional
	Path string `json:"path,omitempty"`

	// Target is what the signal should be at. Of a preset it is the number of
	// requests, running and waiting, that a replica should have, and optional.
	// +optional
	Target *Target `json:"target,omitempty"`

	// SLO is what requests may take. With it a preset's target is learned: the
	// number of requests with which replicas keep it, most of the time.
	// +optional
	SLO *SLO `json:"slo,omitempty"`

	// Activation is the value over the workload above which it is started from
	// zero, and at or below which it may go to zero.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="an activation must not be negative"
	// +optional
	Activation *resource.Quantity `json:"activation,omitempty"`
}

// SLO is what nearly all requests may take: one of its limits, or both. vLLM and
// SGLang tell what they do take.
//
// +kubebuilder:validation:MinProperties=1
type SLO struct {
	// InterTokenLatency is the mean time between a request's tokens, such as 50ms.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="a latency must be greater than 0, such as 50ms"
	// +optional
	InterTokenLatency *metav1.Duration `json:"interTokenLatency,omitempty"`

	// TimeToFirstToken is the time from a request to its first token, such as 2s.
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="a latency must be greater than 0, such as 50ms"
	// +optional
	TimeToFirstToken *metav1.Duration `json:"timeToFirstToken,omitempty"`
}

// Preset names an inference server whose metrics are known.
//
// +kubebuilder:validation:Enum=vllm;triton;tgi;sglang
type Preset string

// The presets.
const (
	PresetVLLM   Preset = "vllm"   // vLLM
	PresetTriton Preset = "triton" // NVIDIA Triton Inference Server, with any backend
	PresetTGI    Preset = "tgi"    // Hugging Face Text Generation Inference
	PresetSGLang Preset = "sglang" // SGLang, started with --enable-metrics
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
type PodsSignal struct {
	// Metric is its name; several series of that name in one pod are summed.
	// +kubebuilder:validation:MinLength=1
	Metric string `json:"metric"`
	// Port is a container port, by number or name; without it the only one.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:Pattern=`^([a-z0-9]+-)*[0-9]*[a-z][a-z0-9]*(-[a-z0-9]+)*$`
	// +kubebuilder:validation:XValidation:rule="type(self) != int || (self >= 1 && self <= 65535)",message="a port is a number from 1 to 65535, or the name of a container port"
	// +optional
	Port *intstr.IntOrString `json:"port,omitempty"`
	// Path is where the pod serves its metrics. It is absolute, without a query
	// string and percent-encoding.
	// +kubebuilder:default=/metrics
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/([A-Za-z0-9._~!$&'()*+,;=:@-]+(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*/?)?$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.][.]?(/|$)')",message="a path must not have a segment that is . or .."
	// +optional
	Path string `json:"path,omitempty"`
}

// QuerySignal is a PromQL query.
type QuerySignal struct {
	// PromQL must give one number, for the workload as a whole.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:Pattern=`\S`
	PromQL string `json:"promql"`
}

// TargetType says what a target's value is counted per.
//
// +kubebuilder:validation:Enum=AverageValue;Value
type TargetType string

// The target types.
const (
	AverageValue TargetType = "AverageValue" // per serving replica
	Value        TargetType = "Value"        // for the workload as a whole
)

// Target is what a signal should be at.
type Target struct {
	// +kubebuilder:default=AverageValue
	// +optional
	Type TargetType `json:"type,omitempty"`
	// Value is the target, greater than 0.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self > 0 : !self.startsWith('-') && !(self in ['0', '0.0', '0m'])",message="a target must be greater than 0"
	Value resource.Quantity `json:"value"`
}

// Behavior bounds the scaling in each direction.
type Behavior struct {
	// +optional
	ScaleUp *ScalingRules `json:"scaleUp,omitempty"`
	// +optional
	ScaleDown *ScalingRules `json:"scaleDown,omitempty"`
}

// ScalingRules bound one direction. Without policies the direction is not
// bounded by rate: replicas on the way are counted, so nothing doubles.
type ScalingRules struct {
	// StabilizationWindowSeconds is how long a change must have been wanted. By
	// default it is 0 up; down it is as long as a replica takes to start, and 300 at
	// least, and replicas go in steps of a fifth. 0 down is none at all: every
	// reading counts at once, noise included.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	// +optional
	StabilizationWindowSeconds *int32 `json:"stabilizationWindowSeconds,omitempty"`
	// SelectPolicy says which of several policies counts; Max by default.
	// +kubebuilder:validation:Enum=Max;Min;Disabled
	// +optional
	SelectPolicy *string `json:"selectPolicy,omitempty"`
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	Policies []ScalingPolicy `json:"policies,omitempty"`
	// Tolerance is the relative deviation from target that is let be; 0.1 by
	// default.
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : !self.startsWith('-')",message="a tolerance must not be negative"
	// +optional
	Tolerance *resource.Quantity `json:"tolerance,omitempty"`
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

// Startup tells how long a replica takes to serve.
type Startup struct {
	// ExpectedSeconds is from the pod's creation to its readiness.
	// +kubebuilder:validation:Minimum=0
	// +optional
	ExpectedSeconds *int32 `json:"expectedSeconds,omitempty"`
}

// Budget bounds what the workload may take.
type Budget struct {
	// MaxGPUs is the most GPU devices that all replicas together may hold. A MIG
	// instance, a replica of a shared GPU and a device of a resource claim count as
	// one each.
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxGPUs *int32 `json:"maxGPUs,omitempty"`
}

// The types of a GPUAutoscaler's conditions.
const (
	// ConditionReady: the target was found, is ours to scale, and signals are readable.
	ConditionReady = "Ready"
	// ConditionAbleToScale: the target exists, has a scale, and nobody else owns it.
	ConditionAbleToScale = "AbleToScale"
	// ConditionSignals: at least one signal is readable.
	ConditionSignals = "SignalsReadable"
	// ConditionSources: no exporter contradicts the API server about which GPUs the pods hold.
	ConditionSources = "SourcesTrusted"
	// ConditionConsistent: the signals do not work against one another. False
	// has no effect on Ready.
	ConditionConsistent = "SignalsConsistent"
	// ConditionWindow: samples of its pods are kept for all of the window. It is
	// there once that was False.
	ConditionWindow = "WindowComplete"
)

// GPUAutoscalerStatus is what is known and what was decided.
type GPUAutoscalerStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// CurrentReplicas is spec.replicas of the target as last seen.
	CurrentReplicas int32 `json:"currentReplicas"`
	// ServingReplicas are ready.
	ServingReplicas int32 `json:"servingReplicas"`
	// StartingReplicas are on the way.
	StartingReplicas int32 `json:"startingReplicas"`
	// UnschedulableReplicas are neither: no node takes them, or they have been
	// starting for far longer than is usual.
	// +optional
	UnschedulableReplicas int32 `json:"unschedulableReplicas,omitempty"`
	// Pending says what keeps replicas from serving, where it is not just that
	// they are starting.
	// +listType=atomic
	// +optional
	Pending []PendingStatus `json:"pending,omitempty"`
	// DesiredReplicas is the last decision.
	DesiredReplicas int32 `json:"desiredReplicas"`
	// LastScaleTime is when the replicas were last changed by us.
	// +optional
	LastScaleTime *metav1.Time `json:"lastScaleTime,omitempty"`
	// Startup is what was learned of the time from creation to serving.
	// +optional
	Startup *LearnedStartup `json:"startup,omitempty"`
	// LastDecision says why.
	// +optional
	LastDecision *DecisionStatus `json:"lastDecision,omitempty"`
	// Memory is what the engine remembers, so that a controller that restarts
	// goes on where it ended.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PendingStatus is one reason why replicas do not serve.
type PendingStatus struct {
	// Reason is the scheduler's, such as Unschedulable, or the container's, such
	// as ImagePullBackOff.
	Reason string `json:"reason"`
	// Replicas is how many it holds.
	Replicas int32 `json:"replicas"`
	// Message is of one of them.
	// +optional
	Message string `json:"message,omitempty"`
}

// Memory is the engine's memory. Its form is not part of this API.
type Memory struct {
	Time metav1.MicroTime `json:"time"`
	// +kubebuilder:pruning:PreserveUnknownFields
	State runtime.RawExtension `json:"state"`
}

// LearnedStartup is the time from a pod's creation to its readiness.
type LearnedStartup struct {
	// P50Seconds and P95Seconds are quantiles over the last starts.
	P50Seconds int32 `json:"p50Seconds"`
	P95Seconds int32 `json:"p95Seconds"`
	// Samples is how many starts they are taken from.
	Samples int32 `json:"samples"`
}

// DecisionStatus is a decision with its reasons.
type DecisionStatus struct {
	Time metav1.MicroTime `json:"time"`
	// Reason is the rule that made the decision.
	Reason string `json:"reason"`
	// Message is the decision in a sentence.
	Message string `json:"message"`
	// Steps are the rules that were applied, in order.
	// +listType=atomic
	// +optional
	Steps []StepStatus `json:"steps,omitempty"`
	// Inputs are the signals as they were read.
	// +listType=atomic
	// +optional
	Inputs []InputStatus `json:"inputs,omitempty"`
}

// StepStatus is one rule that was applied.
type StepStatus struct {
	Rule    string `json:"rule"`
	Before  int32  `json:"before"`
	After   int32  `json:"after"`
	Message string `json:"message"`
}

// InputStatus is one signal as it was read.
type InputStatus struct {
	Signal string `json:"signal"`
	// Value is the mean per serving replica, or the workload's total; empty when
	// it could not be read.
	// +optional
	Value string `json:"value,omitempty"`
	// Target is in the same unit as Value.
	Target string `json:"target"`
	// +optional
	Unit string `json:"unit,omitempty"`
	// Replicas is how many replicas had a fresh value.
	Replicas int32 `json:"replicas"`
	// AgeMilliseconds is of the oldest fresh value.
	// +optional
	AgeMilliseconds int64 `json:"ageMilliseconds,omitempty"`
	// Deciding marks the signal that asked for the most replicas.
	// +optional
	Deciding bool `json:"deciding,omitempty"`
}
