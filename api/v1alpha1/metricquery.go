// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MetricQuery is a named value: an external metric of its namespace, and a signal of KEDA
// triggers in it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=mq
// +kubebuilder:printcolumn:name="Metric",type=string,JSONPath=`.status.metricName`
// +kubebuilder:printcolumn:name="Value",type=string,JSONPath=`.status.value`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Why",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MetricQuery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   MetricQuerySpec   `json:"spec"`
	Status MetricQueryStatus `json:"status,omitempty"`
}

// MetricQueryList is a list of MetricQueries.
//
// +kubebuilder:object:root=true
type MetricQueryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MetricQuery `json:"items"`
}

// MetricQuerySpec says what the value is. Exactly one of query, gpu and autoscaler is set.
//
// +kubebuilder:validation:XValidation:rule="[has(self.query), has(self.gpu), has(self.autoscaler)].filter(x, x).size() == 1",message="set exactly one of query, gpu and autoscaler"
// +kubebuilder:validation:XValidation:rule="!has(self.metricName) || self.metricName != 'gpupilot_desired_replicas'",message="gpupilot_desired_replicas is the metric of all GPUAutoscalers; use another metricName"
type MetricQuerySpec struct {
	// MetricName is the name of the external metric. The default is the object's name. If
	// several objects of a namespace have the same, the oldest one is served.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-zA-Z0-9_:]([-a-zA-Z0-9_.:]*[a-zA-Z0-9_:])?$`
	// +optional
	MetricName string `json:"metricName,omitempty"`

	// Query is a PromQL query, limited to the series of the namespace.
	// +optional
	Query *MetricQueryPromQL `json:"query,omitempty"`
	// GPU is a metric of the serving pods of a workload.
	// +optional
	GPU *MetricQueryGPU `json:"gpu,omitempty"`
	// Autoscaler is the desired number of replicas of a GPUAutoscaler.
	// +optional
	Autoscaler *MetricQueryAutoscaler `json:"autoscaler,omitempty"`
}

// MetricQueryPromQL is a PromQL query.
type MetricQueryPromQL struct {
	// PromQL has one number as its result: a scalar, or a vector with one element.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	PromQL string `json:"promql"`
}

// MetricQueryGPU is a metric of a workload's pods.
type MetricQueryGPU struct {
	// ScaleTargetRef is the workload, in the namespace of the MetricQuery.
	ScaleTargetRef CrossVersionObjectReference `json:"scaleTargetRef"`
	// Metric is as in a GPUAutoscaler's gpu.metric, such as Utilization.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Metric string `json:"metric"`
	// Stat combines the values of the pods: avg, sum, min, max or a percentile from p1 to
	// p99.
	// +kubebuilder:validation:Pattern=`^(avg|sum|min|max|p[1-9][0-9]?)$`
	// +kubebuilder:default=avg
	// +optional
	Stat string `json:"stat,omitempty"`
	// Window is the time over which values are taken, such as 5m. Without it, the newest
	// values are.
	// +optional
	Window *metav1.Duration `json:"window,omitempty"`
	// InUse selects GPUs of the serving pods: allocated means all, active those with a
	// utilisation above zero within the window, or now without a window.
	// +kubebuilder:validation:Enum=allocated;active
	// +kubebuilder:default=allocated
	// +optional
	InUse string `json:"inUse,omitempty"`
}

// MetricQueryAutoscaler names a GPUAutoscaler.
type MetricQueryAutoscaler struct {
	// Name of the GPUAutoscaler, in the namespace of the MetricQuery. With actuation:
	// Advise it decides without scaling.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// MetricQueryStatus is the newest value. It is written when the condition changes, and
// otherwise at most every 30 s.
type MetricQueryStatus struct {
	// MetricName is the name of the external metric.
	// +optional
	MetricName string `json:"metricName,omitempty"`
	// Value is the newest value; absent if there is none.
	// +optional
	Value *resource.Quantity `json:"value,omitempty"`
	// Time is when the value was measured or decided.
	// +optional
	Time *metav1.Time `json:"time,omitempty"`
	// ObservedGeneration is the generation that the status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready is True while the metric has a fresh value.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
