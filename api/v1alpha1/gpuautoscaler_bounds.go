// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Override holds or bounds the replicas until a time: exactly one of replicas,
// minReplicas, maxReplicas and freeze. It takes precedence over signals, behavior,
// schedules, minReplicas and maxReplicas of the spec. The budget limits it.
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
	// +kubebuilder:validation:Pattern=`^[^\p{Cc}\p{Cf}]*\S[^\p{Cc}\p{Cf}]*$`
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

// Drain lets replicas finish their requests before a scale-down removes them. Pods that
// declare the readiness gate gpupilot.dev/serving leave the endpoints first. The replicas
// fall when such a pod has no request in flight, by its server's own metrics, or after
// maxSeconds. PodDisruptionBudgets are kept.
type Drain struct {
	// MaxSeconds is how long a replica may take to finish its requests.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=7200
	MaxSeconds int32 `json:"maxSeconds"`
}

// ReadinessGate is the readiness gate of pods that can leave the endpoints while they run,
// and the type of the condition of such a pod. Draining is the reason of the condition
// while it is False because of a scale-down.
const (
	ReadinessGate   = "gpupilot.dev/serving"
	ReasonDraining  = "Draining"
	ReasonInService = "InService"
)

// ReasonNotDraining is the reason of ConditionDraining while no replica leaves and nothing is
// in the way.
const ReasonNotDraining = "NotDraining"

// Reasons of conditions about what bounds the replicas.
const (
	ModeHeld                = "Held"            // of status.mode: an override holds or bounds the replicas
	ReasonNoOverride        = "NoOverride"      // of ConditionOverridden
	ReasonScalingDisabled   = "ScalingDisabled" // of ConditionScalingActive: others have set the replicas to 0
	ReasonLimitedByOverride = "Override"        // of ConditionScalingLimited
	ReasonLimitedByIdle     = "Idle"            // of ConditionScalingLimited
)

// Further types of a GPUAutoscaler's conditions.
const (
	// ConditionScalingActive: signals set the replicas. It is False while no signal has a
	// value, and while others have set the replicas to 0.
	ConditionScalingActive = "ScalingActive"
	// ConditionScalingLimited: maxReplicas, the budget, a rate, a schedule or an override
	// changes the number that the signals ask for.
	ConditionScalingLimited = "ScalingLimited"
	// ConditionOverridden: an override holds or bounds the replicas. The condition exists
	// once the object has had an override.
	ConditionOverridden = "Overridden"
	// ConditionRollout: the target's pods are being replaced by those of another version.
	// The condition exists once it has been True.
	ConditionRollout = "RolloutInProgress"
	// ConditionDraining: replicas finish their requests before they are removed. The condition
	// exists if the spec has drain. False with another reason than NotDraining says what is
	// missing.
	ConditionDraining = "Draining"
)

// OverrideStatus is what the controller knows of the spec's override.
type OverrideStatus struct {
	// Since is when the controller first read an override with this end.
	Since metav1.Time `json:"since"`
	Until metav1.Time `json:"until"`
}

// Schedule bounds the replicas within windows of time that recur, in place of minReplicas
// and maxReplicas of the spec. Of several active schedules the highest minimum and the
// lowest maximum count; the minimum takes precedence.
//
// +kubebuilder:validation:XValidation:rule="has(self.start) == has(self.end) && has(self.cron) == has(self.duration) && has(self.start) != has(self.cron)",message="a schedule needs start and end, or cron and duration"
// +kubebuilder:validation:XValidation:rule="!has(self.days) || has(self.start)",message="days belong to start and end"
// +kubebuilder:validation:XValidation:rule="has(self.minReplicas) || has(self.maxReplicas)",message="a schedule needs minReplicas, maxReplicas or both"
// +kubebuilder:validation:XValidation:rule="!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",message="minReplicas must not be greater than maxReplicas"
type Schedule struct {
	// Name is for sentences and the status.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// TimeZone is the name of a zone of the IANA database, such as Europe/Berlin; UTC by
	// default.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`
	// +optional
	TimeZone string `json:"timezone,omitempty"`
	// Days are the days on which a window starts; every day by default.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=7
	// +listType=set
	// +optional
	Days []Weekday `json:"days,omitempty"`
	// Start is when a window starts, such as "08:00".
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	// +optional
	Start string `json:"start,omitempty"`
	// End is when it ends. An end that is not later than the start is on the next day.
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	// +optional
	End string `json:"end,omitempty"`
	// Cron is when windows start, in five fields: minute, hour, day of the month, month, day
	// of the week.
	// +kubebuilder:validation:MinLength=9
	// +kubebuilder:validation:MaxLength=100
	// +optional
	Cron string `json:"cron,omitempty"`
	// Duration is the length of a window of cron, from 1m to 168h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="a duration must lie between 1m and 168h, which is 7 days"
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// MinReplicas is the lower bound within a window.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// MaxReplicas is the upper bound within a window; 0 stops the workload.
	// +kubebuilder:validation:Minimum=0
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
	// LeadTime is how much earlier minReplicas applies: Auto, the default, is the time that a
	// replica takes to serve, so that replicas serve when the window starts; or a number of
	// seconds.
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 86400 : self == 'Auto'",message="leadTime must be Auto or a number of seconds up to 86400"
	// +optional
	LeadTime *intstr.IntOrString `json:"leadTime,omitempty"`
}

// Weekday is a day of the week.
//
// +kubebuilder:validation:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
type Weekday string

// BoundsStatus are the bounds in force, by schedules and the override.
type BoundsStatus struct {
	MinReplicas int32 `json:"minReplicas"`
	MaxReplicas int32 `json:"maxReplicas"`
	// Schedules are the active ones. A schedule is active from its lead time on.
	// +listType=atomic
	// +optional
	Schedules []string `json:"schedules,omitempty"`
}
