// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Override holds or bounds the replicas until a time: exactly one of replicas,
// minReplicas, maxReplicas and freeze. It takes precedence over signals, behavior,
// minReplicas and maxReplicas of the spec. The budget limits it.
//
// +kubebuilder:validation:XValidation:rule="[has(self.replicas), has(self.minReplicas), has(self.maxReplicas), has(self.freeze)].filter(x, x).size() == 1",message="an override needs exactly one of replicas, minReplicas, maxReplicas and freeze"
type Override struct {
	// Replicas holds this number of replicas, also above maxReplicas of the spec.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// MinReplicas replaces minReplicas of the spec, and a lower maxReplicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// MaxReplicas replaces maxReplicas of the spec, and a higher minReplicas.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// Freeze is Up for no scale-up, Down for no scale-down, or Both for no change.
	// +optional
	Freeze Freeze `json:"freeze,omitempty"`
	// Until is when the override ends by itself. It is at most 30 days after the controller
	// first reads the override.
	Until metav1.Time `json:"until"`
	// Reason says why, for everybody who finds the override: an incident, a ticket, a name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=200
	// +kubebuilder:validation:Pattern=`\S`
	Reason string `json:"reason"`
}

// Freeze is a direction in which an override allows no change.
//
// +kubebuilder:validation:Enum=Up;Down;Both
type Freeze string

// The directions.
const (
	FreezeUp   Freeze = "Up"
	FreezeDown Freeze = "Down"
	FreezeBoth Freeze = "Both"
)

// Further types of a GPUAutoscaler's conditions.
const (
	// ConditionScalingActive: signals set the replicas. It is False while no signal has a
	// value, and while others have set the replicas to 0.
	ConditionScalingActive = "ScalingActive"
	// ConditionScalingLimited: maxReplicas, the budget, a rate or an override changes the
	// number that the signals ask for.
	ConditionScalingLimited = "ScalingLimited"
	// ConditionOverridden: an override holds or bounds the replicas. The condition exists
	// once the object has had an override.
	ConditionOverridden = "Overridden"
)

// OverrideStatus is what the controller knows of the spec's override.
type OverrideStatus struct {
	// Since is when the controller first read an override with this end.
	Since metav1.Time `json:"since"`
	Until metav1.Time `json:"until"`
}
