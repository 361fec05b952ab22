// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

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
	// DrainingReplicas is the number of replicas that finish their requests before they are
	// removed. They count in currentReplicas only.
	// +optional
	DrainingReplicas int32 `json:"drainingReplicas,omitempty"`
	// Pending lists the reasons why replicas do not serve, other than a normal start.
	// +listType=atomic
	// +optional
	Pending []PendingStatus `json:"pending,omitempty"`
	// DesiredReplicas is the number of replicas of the decision. It is missing while none is
	// made: a condition says why.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// Signal is the value and the target of the signal that decided last, such as 36/60 %.
	// +optional
	Signal string `json:"signal,omitempty"`
	// Mode is who sets the replicas now: Scale, Advise or HPA, as spec.actuation, or Held
	// while an override holds or bounds them.
	// +optional
	Mode string `json:"mode,omitempty"`
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
	// ReplicasBefore are those from before this object has set any, for onDelete: Restore.
	// +optional
	ReplicasBefore *ReplicasBefore `json:"replicasBefore,omitempty"`
	// Idle is set while the spec has idle, and something is to be said.
	// +optional
	Idle *IdleStatus `json:"idle,omitempty"`
	// HPA is the HorizontalPodAutoscaler that the object owns, with actuation: HPA.
	// +optional
	HPA *OwnedHPA `json:"hpa,omitempty"`
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
	// Reason is that of the scheduler, such as Unschedulable, of the container, such as
	// ImagePullBackOff, or FailedCreate where pods cannot be created, such as for a quota.
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
	// P50Seconds, P75Seconds and P95Seconds are quantiles over the last starts.
	P50Seconds int32 `json:"p50Seconds"`
	// +optional
	P75Seconds int32 `json:"p75Seconds,omitempty"`
	P95Seconds int32 `json:"p95Seconds"`
	// Samples is the number of starts.
	Samples int32 `json:"samples"`
}

// ReplicasBefore are a target's replicas from before a GPUAutoscaler has set any.
type ReplicasBefore struct {
	// Target is the kind and the name.
	Target   string `json:"target"`
	Replicas int32  `json:"replicas"`
}

// OwnedHPA identifies a HorizontalPodAutoscaler that the controller has created.
type OwnedHPA struct {
	Name string `json:"name"`
	// UID tells it from one that somebody else gave its name.
	UID types.UID `json:"uid"`
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
