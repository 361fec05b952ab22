// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// GPUAutoscaler sets the replicas of one workload from metrics of its GPUs, of its
// pods, or of a query.
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
	Signals []Signal `json:"signals"`

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

	// Actuation is Scale to write the replicas, or Advise to only report decisions.
	// +kubebuilder:default=Scale
	// +optional
	Actuation Actuation `json:"actuation,omitempty"`

	// Budget bounds the GPUs of the workload.
	// +optional
	Budget *Budget `json:"budget,omitempty"`

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
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// Actuation is the effect of a decision.
//
// +kubebuilder:validation:Enum=Scale;Advise
type Actuation string

// The actuations.
const (
	ActuationScale  Actuation = "Scale"  // write the scale subresource
	ActuationAdvise Actuation = "Advise" // only report decisions
)

// Signal is one measure of the load, with its target: exactly one of gpu, pods, query
// and preset.
//
// +kubebuilder:validation:XValidation:rule="[has(self.gpu), has(self.pods), has(self.query), has(self.preset)].filter(x, x).size() == 1",message="a signal needs exactly one of gpu, pods, query and preset"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || has(self.target)",message="a signal needs a target"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !(has(self.port) || has(self.path))",message="port and path of a signal are for presets; set pods.port and pods.path instead"
// +kubebuilder:validation:XValidation:rule="!has(self.preset) || !has(self.target) || self.target.type == 'AverageValue'",message="a preset's target is per replica: AverageValue"
// +kubebuilder:validation:XValidation:rule="has(self.preset) || !has(self.slo)",message="an slo needs a preset, which names the server's latency metrics"
// +kubebuilder:validation:XValidation:rule="!has(self.slo) || !has(self.preset) || self.preset in ['vllm', 'sglang', 'triton']",message="this preset has no time between tokens: set a target instead of an slo"
// +kubebuilder:validation:XValidation:rule="!has(self.activation) || has(self.query) || has(self.preset) && self.preset in ['epp', 'dynamo']",message="activation needs a signal that can be read at zero replicas: a query, or the preset epp or dynamo"
// +kubebuilder:validation:XValidation:rule="!has(self.selector) || has(self.preset) && self.preset in ['epp', 'dynamo']",message="selector is for the presets epp and dynamo"
// +kubebuilder:validation:XValidation:rule="!has(self.pool) || has(self.preset) && self.preset == 'epp'",message="pool is for the preset epp"
// +kubebuilder:validation:XValidation:rule="has(self.model) == (has(self.preset) && self.preset == 'dynamo')",message="the preset dynamo needs a model, and no other signal has one"
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

// The types of a GPUAutoscaler's conditions.
const (
	// ConditionReady: the target exists and can be scaled, and signals are readable.
	ConditionReady = "Ready"
	// ConditionAbleToScale: the target exists, has a scale subresource, and no other
	// autoscaler sets its replicas.
	ConditionAbleToScale = "AbleToScale"
	// ConditionSignals: at least one signal is readable.
	ConditionSignals = "SignalsReadable"
	// ConditionSources: no exporter contradicts the API server about which GPUs the pods hold.
	ConditionSources = "SourcesTrusted"
	// ConditionConsistent: the signals do not conflict with one another. False has no
	// effect on Ready.
	ConditionConsistent = "SignalsConsistent"
	// ConditionAttainable: the objective of an slo can be kept, by what the load has done and
	// by what an idle replica takes. The condition exists with an slo only. False has no
	// effect on Ready.
	ConditionAttainable = "ObjectiveAttainable"
	// ConditionMeasured: the servers count the requests that miss the limits of an slo. The
	// condition exists with an slo only. False has no effect on Ready.
	ConditionMeasured = "ObjectiveMeasured"
	// ConditionWindow: the samples of its pods cover the whole window. The condition
	// exists once it has been False.
	ConditionWindow = "WindowComplete"
)

// GPUAutoscalerStatus is the observed state and the last decision.
type GPUAutoscalerStatus struct {
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// CurrentReplicas is the last observed spec.replicas of the target.
	CurrentReplicas int32 `json:"currentReplicas"`
	// ServingReplicas is the number of ready replicas.
	ServingReplicas int32 `json:"servingReplicas"`
	// StartingReplicas is the number of replicas that are starting.
	StartingReplicas int32 `json:"startingReplicas"`
	// UnschedulableReplicas is the number of replicas that no node fits, or that have been
	// starting for far longer than usual.
	// +optional
	UnschedulableReplicas int32 `json:"unschedulableReplicas,omitempty"`
	// Pending lists the reasons why replicas do not serve, other than a normal start.
	// +listType=atomic
	// +optional
	Pending []PendingStatus `json:"pending,omitempty"`
	// DesiredReplicas is the number of replicas of the decision. It is missing while none is
	// made: a condition says why.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// LastScaleTime is when the controller last changed the replicas.
	// +optional
	LastScaleTime *metav1.Time `json:"lastScaleTime,omitempty"`
	// Startup is the learned time from creation to serving.
	// +optional
	Startup *LearnedStartup `json:"startup,omitempty"`
	// Objectives say how well each slo is kept, and what it costs.
	// +listType=atomic
	// +optional
	Objectives []ObjectiveStatus `json:"objectives,omitempty"`
	// Bounds are set while the spec has schedules or an override.
	// +optional
	Bounds *BoundsStatus `json:"bounds,omitempty"`
	// Override is set while the spec has an override.
	// +optional
	Override *OverrideStatus `json:"override,omitempty"`
	// LastDecision is the last decision with its reasons.
	// +optional
	LastDecision *DecisionStatus `json:"lastDecision,omitempty"`
	// Memory is the stored state of the decision engine, compressed, with which a restarted
	// controller continues.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PendingStatus is one reason why replicas do not serve.
type PendingStatus struct {
	// Reason is that of the scheduler, such as Unschedulable, or of the container, such as
	// ImagePullBackOff.
	Reason string `json:"reason"`
	// Replicas is the number of replicas with this reason.
	Replicas int32 `json:"replicas"`
	// Message is the message of one of them.
	// +optional
	Message string `json:"message,omitempty"`
}

// Memory is the stored state of the decision engine. Its format is not part of this API.
type Memory struct {
	Time metav1.MicroTime `json:"time"`
	// +kubebuilder:pruning:PreserveUnknownFields
	State runtime.RawExtension `json:"state"`
	// Requests has the requests of the last 28 days, and those that missed a limit, for each
	// slo.
	// +kubebuilder:validation:MaxItems=2
	// +listType=atomic
	// +optional
	Requests []RequestsRecord `json:"requests,omitempty"`
}

// RequestsRecord is the stored record of one slo. Its format is not part of this API.
type RequestsRecord struct {
	// Of is the signal and the limits that the record is about.
	Of string `json:"of"`
	// +kubebuilder:validation:MaxLength=3072
	Data []byte `json:"data"`
}

// ObjectiveStatus says how well an slo is kept. Numbers of requests and shares are bounds
// where the servers' histograms leave a range.
type ObjectiveStatus struct {
	Signal string `json:"signal"`
	// Objective is the share of the requests that keeps the limits, and Over the time over
	// which it is judged.
	Objective string `json:"objective"`
	Over      string `json:"over"`
	// Since is when the first request was counted.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// Requests is the number of requests that ended within Over.
	// +optional
	Requests int64 `json:"requests,omitempty"`
	// Missed is the number of those that certainly missed a limit or were aborted.
	// +optional
	Missed int64 `json:"missed,omitempty"`
	// MissedAtMost is the highest possible number, if it differs.
	// +optional
	MissedAtMost int64 `json:"missedAtMost,omitempty"`
	// Attained is the share that kept the limits, at least. It is empty without requests.
	// +optional
	Attained string `json:"attained,omitempty"`
	// AttainedAtMost is the highest possible share, if it differs.
	// +optional
	AttainedAtMost string `json:"attainedAtMost,omitempty"`
	// BudgetLeft is the share of the allowed misses that is left, at least. It is negative if
	// more requests missed than are allowed.
	// +optional
	BudgetLeft string `json:"budgetLeft,omitempty"`
	// BudgetLeftAtMost is the highest possible share, if it differs.
	// +optional
	BudgetLeftAtMost string `json:"budgetLeftAtMost,omitempty"`
	// BurnRates say how fast the misses use the budget: at 1, it lasts for Over.
	// +listType=atomic
	// +optional
	BurnRates []BurnRateStatus `json:"burnRates,omitempty"`
	// Plan has the mean number of replicas that the objective takes, by the recorded load.
	// +optional
	Plan *PlanStatus `json:"plan,omitempty"`
	// Message says all of this in a sentence.
	Message string `json:"message"`
}

// BurnRateStatus is the burn rate in a window until now.
type BurnRateStatus struct {
	Window string `json:"window"`
	Rate   string `json:"rate"`
}

// PlanStatus has what objectives take, in mean replicas over the recorded load.
type PlanStatus struct {
	Replicas string `json:"replicas"`
	// LooserReplicas are for twice, and StricterReplicas for half the allowed misses.
	LooserObjective   string `json:"looserObjective"`
	LooserReplicas    string `json:"looserReplicas"`
	StricterObjective string `json:"stricterObjective"`
	StricterReplicas  string `json:"stricterReplicas"`
	// NeededReplicas is what keeping the objective would take, if the plan does not keep it
	// because the load rises faster than replicas start. It is empty if nothing would.
	// +optional
	NeededReplicas string `json:"neededReplicas,omitempty"`
}

// LearnedStartup is the time from a pod's creation to its readiness.
type LearnedStartup struct {
	// P50Seconds and P95Seconds are quantiles over the last starts.
	P50Seconds int32 `json:"p50Seconds"`
	P95Seconds int32 `json:"p95Seconds"`
	// Samples is the number of starts.
	Samples int32 `json:"samples"`
}

// DecisionStatus is a decision with its reasons.
type DecisionStatus struct {
	Time metav1.MicroTime `json:"time"`
	// Reason is the rule that made the decision.
	Reason string `json:"reason"`
	// Message explains the decision.
	Message string `json:"message"`
	// Steps are the rules that were applied, in order.
	// +listType=atomic
	// +optional
	Steps []StepStatus `json:"steps,omitempty"`
	// Inputs are the values of the signals.
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

// InputStatus is the value of one signal in a decision.
type InputStatus struct {
	Signal string `json:"signal"`
	// Value is the mean per serving replica, or the workload's total; empty if there is
	// none.
	// +optional
	Value string `json:"value,omitempty"`
	// Target is in the same unit as Value.
	Target string `json:"target"`
	// +optional
	Unit string `json:"unit,omitempty"`
	// Replicas is the number of replicas with a fresh value.
	Replicas int32 `json:"replicas"`
	// AgeMilliseconds is the age of the oldest fresh value.
	// +optional
	AgeMilliseconds int64 `json:"ageMilliseconds,omitempty"`
	// Deciding is true for the signal that asks for the most replicas.
	// +optional
	Deciding bool `json:"deciding,omitempty"`
}
