// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Pair keeps the replicas in a ratio to those of another GPUAutoscaler, such as prefill to
// decode. Each follows its own signals; the one that has too few for the other gets more. One
// of the two names the other, and a GPUAutoscaler is in one pair at most.
type Pair struct {
	// With is the name of the other GPUAutoscaler, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	With string `json:"with"`
	// Ratio bounds the replicas of this one for each of the other.
	Ratio PairRatio `json:"ratio"`
}

// PairRatio bounds a ratio of replicas.
//
// +kubebuilder:validation:XValidation:rule="has(self.min) || has(self.max)",message="a ratio needs min, max or both"
// +kubebuilder:validation:XValidation:rule="!has(self.min) || !has(self.max) || quantity(string(self.min)).compareTo(quantity(string(self.max))) <= 0",message="min must not be greater than max"
type PairRatio struct {
	// Min is the least number of replicas for each of the other, such as "0.5"; it is kept
	// by more replicas of this one.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0')) >= 0 && quantity(string(self)).compareTo(quantity('1000')) <= 0",message="a ratio must lie between 0 and 1000"
	// +optional
	Min *resource.Quantity `json:"min,omitempty"`
	// Max is the highest number of replicas for each of the other, from "0.001" to "1000"; it
	// is kept by more replicas of the other.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('0.001')) >= 0 && quantity(string(self)).compareTo(quantity('1000')) <= 0",message="a ratio must lie between 0.001 and 1000"
	// +optional
	Max *resource.Quantity `json:"max,omitempty"`
}

// ConditionPaired says that the replicas are kept in the ratio of a pair. The condition exists in a pair
// only. False has no effect on Ready.
const ConditionPaired = "Paired"

// The reasons of ConditionPaired.
const (
	ReasonPairKept      = "Kept"
	ReasonPairNotFound  = "PartnerNotFound"
	ReasonPairAmbiguous = "NotAPair" // a circle, a chain, or three members
	ReasonPairBounded   = "RatioBounded"
	ReasonPairUnknown   = "PartnerUnknown"
)
