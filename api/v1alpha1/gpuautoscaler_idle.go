// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Idle removes the replicas of a workload that nobody uses, such as a forgotten notebook. A
// replica is in use while one of its GPUs is active or its server has a request in flight. A
// replica without a value is not idle. An override and the minReplicas of a schedule take
// precedence.
type Idle struct {
	// After is how long nobody must have used the workload, from 1m to 720h, which is 30
	// days. A Warning event announces the scale-down when a fifth of it is left.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('720h')",message="after must lie between 1m and 720h, which is 30 days"
	After metav1.Duration `json:"after"`
	// To is the number of replicas that stay, at most minReplicas.
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +optional
	To int32 `json:"to,omitempty"`
}

// ConditionIdle says that nobody uses the workload, so that its replicas are about to be removed, or
// were. The condition exists if the spec has idle. False has no effect on Ready.
const ConditionIdle = "Idle"

// The reasons of ConditionIdle.
const (
	ReasonIdleInUse   = "InUse"
	ReasonIdleSoon    = "IdleSoon"    // the scale-down is announced
	ReasonIdleDown    = "IdleDown"    // replicas are removed, or were
	ReasonIdleUnknown = "NotMeasured" // a replica has no value
)

// IdleStatus is what the controller knows of a workload that nobody uses.
type IdleStatus struct {
	// ScaleDownAt is when replicas are removed, unless somebody uses the workload.
	// +optional
	ScaleDownAt *metav1.Time `json:"scaleDownAt,omitempty"`
	// Removed is the last scale-down of the workload because nobody used it.
	// +optional
	Removed *IdleRemoval `json:"removed,omitempty"`
}

// IdleRemoval is a scale-down of a workload that nobody used.
type IdleRemoval struct {
	Time metav1.Time `json:"time"`
	From int32       `json:"from"`
	To   int32       `json:"to"`
	// GPUs is the number of GPUs that the removed replicas held, as far as it is known.
	// +optional
	GPUs int32 `json:"gpus,omitempty"`
	// Pods are the names of the removed replicas, at most 8.
	// +listType=atomic
	// +optional
	Pods []string `json:"pods,omitempty"`
}
