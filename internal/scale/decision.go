// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"time"

	"github.com/gpupilot/gpupilot/internal/scale/idle"
	"github.com/gpupilot/gpupilot/internal/scale/promise"
)

// Rule names the rule of a step. The names are public: status, metrics and
// events show them.
type Rule string

// The rules, in the order in which Decide may apply them.
const (
	RuleDemand        Rule = "Demand"        // a signal ÷ its target
	RuleTolerance     Rule = "Tolerance"     // close enough to the target: no change
	RuleForecast      Rule = "Forecast"      // more replicas are needed when new ones serve
	RuleSaturated     Rule = "Saturated"     // the signal is at its ceiling: probe
	RuleStarting      Rule = "Starting"      // replicas are starting: wait for them, and keep them
	RuleSettling      Rule = "Settling"      // the number of serving replicas has just changed
	RuleDraining      Rule = "Draining"      // new replicas process the backlog
	RuleNotServing    Rule = "NotServing"    // no replica serves yet, so nothing is measured
	RulePartial       Rule = "PartialData"   // a replica without a reading may carry any load: not down
	RuleMissing       Rule = "MissingData"   // a signal has no value: no scale-down
	RuleFormula       Rule = "Formula"       // the formula over the signals
	RuleRollout       Rule = "Rollout"       // a rollout in progress: keep
	RuleFallback      Rule = "Fallback"      // no signal has had a value for long: the policy's fallback
	RuleActivation    Rule = "Activation"    // from zero, or to zero
	RuleStabilization Rule = "Stabilization" // the stabilisation window holds the number
	RuleRate          Rule = "Rate"          // a behavior policy limits the step
	RuleDescent       Rule = "Descent"       // the default limit of scale-down steps, without a behavior policy
	RulePair          Rule = "Pair"          // the ratio to what the partner wants
	RuleIdle          Rule = "Idle"          // nobody has used the workload for long
	RuleBounds        Rule = "Bounds"        // minReplicas, maxReplicas
	RuleBudget        Rule = "Budget"        // the GPU budget
	RuleDisabled      Rule = "Disabled"      // the direction is switched off
	RuleOverride      Rule = "Override"      // an override holds or bounds the number until a time
	RuleSchedule      Rule = "Schedule"      // a schedule bounds the number now
	RuleSetToZero     Rule = "SetToZero"     // others set the replicas to 0: they stay 0
	RuleDrain         Rule = "Drain"         // replicas finish their requests before they are removed
	RuleDisruption    Rule = "Disruption"    // a PodDisruptionBudget allows no scale-down now
)

// Facts are the numbers behind a step. The rule determines which are set.
type Facts struct {
	Signal    string        `json:"signal,omitempty"`
	Unit      string        `json:"unit,omitempty"`
	Value     float64       `json:"value,omitempty"`     // mean per serving replica, or the workload's total
	Target    float64       `json:"target,omitempty"`    // in the same unit
	Total     bool          `json:"total,omitempty"`     // Value is for the workload
	Whole     bool          `json:"whole,omitempty"`     // Target is for the workload
	Learned   bool          `json:"learned,omitempty"`   // Target is learned
	Averaged  bool          `json:"averaged,omitempty"`  // Value is noisy: Mean decides, not Demand
	Demand    float64       `json:"demand,omitempty"`    // replicas that Value asks for
	Mean      float64       `json:"mean,omitempty"`      // Demand, averaged over Window
	Earlier   float64       `json:"earlier,omitempty"`   // replicas that the load needed before some ended; Demand may lack what those carried
	Held      bool          `json:"held,omitempty"`      // Demand has the backlog of a rollout, and is limited
	Tolerance float64       `json:"tolerance,omitempty"` // relative
	Serving   int32         `json:"serving,omitempty"`
	Fresh     int32         `json:"fresh,omitempty"`    // serving replicas with a fresh reading
	Without   string        `json:"without,omitempty"`  // a serving replica that should have one, and has none
	Coming    int32         `json:"coming,omitempty"`   // starting replicas
	Replaced  int32         `json:"replaced,omitempty"` // of Before, those that take the place of others
	Stuck     int32         `json:"stuck,omitempty"`    // unschedulable, or starting for too long
	Outlier   string        `json:"outlier,omitempty"`  // a replica with OutlierValue, which counts as OutlierLimit
	Limit     int32         `json:"limit,omitempty"`
	Wait      time.Duration `json:"wait,omitempty"`
	Ago       time.Duration `json:"ago,omitempty"` // since After replicas were wanted; 0: not within Window
	Window    time.Duration `json:"window,omitempty"`
	Down      bool          `json:"down,omitempty"`
	By        string        `json:"by,omitempty"` // the override or the schedule, with its end

	OutlierValue float64 `json:"outlierValue,omitempty"`
	OutlierLimit float64 `json:"outlierLimit,omitempty"`

	// Of a signal with the law Batching:
	Batching    bool          `json:"batching,omitempty"`
	Load        float64       `json:"load,omitempty"`        // share of its capacity that a replica uses; 1: it is at Target
	Arrivals    float64       `json:"arrivals,omitempty"`    // requests/s over the workload; 0: not known
	Capacity    float64       `json:"capacity,omitempty"`    // requests/s that a replica takes at Target; 0: not learned yet
	LearnedFrom time.Duration `json:"learnedFrom,omitempty"` // how much traffic Capacity was learned from
	Arriving    bool          `json:"arriving,omitempty"`    // Demand is Arrivals ÷ Capacity, else by the requests in flight
	Limited     bool          `json:"limited,omitempty"`     // Arrivals ÷ Capacity is more than Demand may be

	// Of a signal with an objective, once its plan decides: Demand is the higher of
	// Highest and Reserve ÷ BusyTarget.
	Planned    bool    `json:"planned,omitempty"`
	Objective  float64 `json:"objective,omitempty"`  // share of the requests, below 1
	Busy       float64 `json:"busy,omitempty"`       // replicas that the load keeps busy now
	Highest    float64 `json:"highest,omitempty"`    // and at most within Window
	Reserve    float64 `json:"reserve,omitempty"`    // busy replicas that are always provided for
	BusyTarget float64 `json:"busyTarget,omitempty"` // busy share of a replica
	// Missed is the share of the requests of the last day that missed a limit, by cause.
	Missed promise.Misses `json:"missed,omitzero"`

	// Of a formula: its text, its terms with their values, and why it has no result.
	Formula string `json:"formula,omitempty"`
	Terms   string `json:"terms,omitempty"`
	Failed  string `json:"failed,omitempty"`

	// MostOf is set on the first step of the signal that decides: the number of
	// readable signals.
	MostOf int32 `json:"mostOf,omitempty"`
}

// Step is the application of one rule to the wanted number of replicas.
type Step struct {
	Rule   Rule  `json:"rule"`
	Before int32 `json:"before"`
	After  int32 `json:"after"`
	Facts  Facts `json:"facts"`
}

// Input is the value of one signal in a decision.
type Input struct {
	Signal string        `json:"signal"`
	Unit   string        `json:"unit,omitempty"`
	Value  float64       `json:"value"` // mean per serving replica, or the workload's total
	Target float64       `json:"target"`
	Fresh  int32         `json:"fresh"` // replicas with a fresh reading, or 1 for a total; 0: there is no Value
	Age    time.Duration `json:"age"`   // age of the oldest fresh reading
	Silent int32         `json:"-"`     // replicas that should have a reading, and have none: Value is that of the others

	Deciding bool `json:"deciding,omitempty"` // it asks for the most replicas
}

// Decision is a number of replicas, and the steps that lead to it.
type Decision struct {
	Time     time.Time `json:"time"`
	Current  int32     `json:"current"`  // observed spec.replicas
	Replicas int32     `json:"replicas"` // what spec.replicas should be
	Rule     Rule      `json:"rule"`     // of the step that made the decision
	Steps    []Step    `json:"steps"`
	Inputs   []Input   `json:"inputs"`

	Serving       int32 `json:"serving"`
	Starting      int32 `json:"starting"`
	Unschedulable int32 `json:"unschedulable"`

	Rollout Rollout     `json:"rollout,omitzero"`
	Idle    idle.Report `json:"idle,omitzero"`

	// Own is what the signals ask for, with windows and rates: the partner of Policy.Pair
	// follows it. It knows nothing of that one.
	Own int32 `json:"own,omitempty"`

	// Leave names the pods that are to be out of the endpoints: Leaving of them finish their
	// requests, the others are removed. A pod that leaves and is not named is to serve again.
	Leave   []string `json:"leave,omitempty"`
	Leaving int32    `json:"leaving,omitempty"`

	// Victims names the pods to remove first when Replicas < Current: unschedulable
	// and starting ones, then those with the lowest load.
	Victims []string `json:"victims,omitempty"`
}

// Changes reports whether the decision changes the number of replicas.
func (d *Decision) Changes() bool { return d.Replicas != d.Current }
